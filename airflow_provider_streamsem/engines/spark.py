"""
Spark in this process: one session for all batches of a process, started by the first that needs it.

A batch runs in a clone of the session, so that the settings on which the accounting rests do not leak into the user's session, nor the user's into
ours. pyspark is imported when a session is first asked for, never before.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engines.contract import Job, Produced
from airflow_provider_streamsem.errors import DataError, InvalidError, StageError, StreamsemError
from airflow_provider_streamsem.protocol.entries import Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # Above 32 paths Spark starts a job only to list them; the plan has listed them already.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # Spark 4.1: a shuffle whose rows come out differently when it is repeated is repeated whole, instead of mixing two answers.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}


_OF_THE_DATA = ("CAST_INVALID_INPUT", "NUMERIC_VALUE_OUT_OF_RANGE", "DIVIDE_BY_ZERO", "CANNOT_MERGE_SCHEMAS")


class SparkEngine:
    """
    An engine on a Spark session of this process (classic PySpark).

    :param master: used where no session is active yet; an active session is used as it is
    :param conf: settings of a session that is started here
    """

    def __init__(self, *, master: str = "local[*]", conf: Mapping[str, str] | None = None) -> None:
        self._master = arguments.text("spark master", master)
        self._conf = arguments.options("spark conf", conf or {})

    def session(self) -> SparkSession:
        """
        The session of this process; started where there is none, or where its JVM has died.

        :raises InvalidError: pyspark is not installed, or is the Connect-only client
        :raises StageError: the JVM did not start
        """
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else executors take the first python3 on the PATH
        try:
            from pyspark.core.context import SparkContext  # noqa: F401
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise InvalidError(
                "classic pyspark is not installed", accepted="pip install 'airflow-provider-streamsem[spark]'"
            ) from error
        from airflow_provider_streamsem.engines import gateway

        gateway.forget_dead_jvm()
        builder = SparkSession.builder.appName("streamsem")
        if SparkSession.getActiveSession() is None:
            builder = (
                builder.master(self._master)
                .config("spark.ui.enabled", "false")
                .config("spark.ui.showConsoleProgress", "false")
            )
            for key, value in {**_s3a_settings(), **self._conf}.items():
                builder = builder.config(key, value)
        try:
            return builder.getOrCreate()
        except Exception as error:
            raise StageError("Spark did not start; nothing was staged", master=self._master) from error

    def stage(self, job: Job, log: CommitLog) -> Produced:
        """Stage one attempt in a clone of the session."""
        user_session = self.session()
        from airflow_provider_streamsem.engines import gateway, staging

        with gateway.cloned(user_session, SETTINGS) as session:
            try:
                return staging.Staging(session, job, log).run()
            except StreamsemError:
                raise
            except Exception as error:
                raise _translated(error, job.plan) from error


def _s3a_settings() -> dict[str, str]:
    """Where boto3 is told by variables to find S3, Spark is told the same; credentials are left to S3A's own chain, which reads the same variables."""
    settings = {"spark.hadoop.fs.s3a.committer.magic.track.commits.in.memory.enabled": "true"}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        settings |= {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def _translated(error: Exception, plan: Plan) -> StreamsemError:
    """What a failure inside Spark means to a person. Its text is chained, not quoted: it may hold values of records."""
    conditions = list(_conditions(error))
    for condition, path in conditions:
        if condition.startswith("FAILED_READ_FILE"):
            return DataError(
                "a planned file cannot be read as its format and schema; nothing became visible",
                version=plan.version,
                file=path,
                condition=condition,
            )
        if condition == "PATH_NOT_FOUND":
            return StageError(
                "a planned file vanished before it was read; nothing became visible", version=plan.version, file=path
            )
        if condition.startswith(_OF_THE_DATA):
            what = "the transform does not fit the data; nothing became visible"
            return DataError(what, version=plan.version, condition=condition)
    kind = type(error).__name__
    if kind == "AnalysisException":
        what = "Spark cannot make sense of the transform on this data; nothing became visible"
        return DataError(what, version=plan.version, condition=conditions[0][0] if conditions else "")
    condition = conditions[0][0] if conditions else ""
    return StageError(
        "the engine failed while staging; nothing became visible", version=plan.version, error=kind, condition=condition
    )


def _conditions(error: BaseException) -> list[tuple[str, str]]:
    """``(condition, path)`` of each Spark error in a chain of causes, Python's and the JVM's."""
    found: list[tuple[str, str]] = []
    with suppress(Exception):
        condition = error.getCondition()  # type: ignore[attr-defined]
        if condition:
            found.append((condition, dict(error.getMessageParameters() or {}).get("path", "")))  # type: ignore[attr-defined]
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        with suppress(Exception):
            condition = cause.getCondition()
            if condition:
                found.append((condition, dict(cause.getMessageParameters()).get("path", "")))
        try:
            cause = cause.getCause()
        except Exception:
            break
    return found
