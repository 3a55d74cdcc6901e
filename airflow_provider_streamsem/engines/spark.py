"""
Spark in this process: one session for all batches of a process, started by the first that needs it.

A batch runs in a clone of the session, so that the settings on which the accounting rests do not leak into the user's session, nor the user's into
ours. pyspark is imported when a session is first asked for, never before.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_streamsem import arguments, telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.engines import causes, packages, versions
from airflow_provider_streamsem.engines.contract import Job, Produced
from airflow_provider_streamsem.engines.packages import Package
from airflow_provider_streamsem.errors import (
    UNREADABLE_FILE,
    DataError,
    InvalidError,
    StageError,
    StoreRefusedError,
    StreamsemError,
)
from airflow_provider_streamsem.sources.files import FilesSource
from airflow_provider_streamsem.sources.kafka import KafkaSource
from airflow_provider_streamsem.stores import s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Only Spark reads the mark that it sets where it wrote dates before 1582 in the old calendar.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # Above 32 paths Spark starts a job only to list them; the plan has listed them already.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # Spark 4.1: a shuffle whose rows come out differently when it is repeated is repeated whole, instead of mixing two answers.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}

_HADOOP = "spark.hadoop."
_REST = re.compile("[/;?]")
_REFUSAL = re.compile(
    r"(AccessControlException|AccessDeniedException|ParentNotDirectoryException|UnknownStoreException|Mkdirs failed to create)[^\n]{0,200}"
)
"""what Hadoop's file systems raise where asking again does not help, with the place"""
_OF_THE_DATA = ("CAST_INVALID_INPUT", "NUMERIC_VALUE_OUT_OF_RANGE", "DIVIDE_BY_ZERO", "CANNOT_MERGE_SCHEMAS")


class SparkEngine:
    """
    An engine on a Spark session of this process: classic PySpark in client mode, or Spark Connect.

    :param master: used where no session is active yet; an active session is used as it is
    :param remote: ``sc://host:port`` of a Spark Connect server, instead of a master. All Spark of the process is then Connect
    :param conf: settings of a session that is started here
    :param packages: ``"auto"``: a session that is started here loads the packages that the pipeline needs, from Maven Central or
        ``spark.jars.repositories``. ``None``: they are on Spark's class path, or named by ``conf``
    :param logs_to_stdout: the JVM writes its log to standard output; Airflow shows what a task writes to standard error as errors
    """

    def __init__(
        self,
        *,
        master: str = "local[*]",
        remote: str | None = None,
        conf: Mapping[str, str] | None = None,
        packages: str | None = None,
        logs_to_stdout: bool = False,
    ) -> None:
        self._master = arguments.text("spark master", master)
        if remote is not None and not remote.startswith("sc://"):
            raise InvalidError("a Spark Connect server is named by a URL", accepted="sc://host:port")
        self._remote = remote
        given = arguments.options("spark conf", conf or {})
        secret = arguments.secret_settings(given)
        self._secret = {name: given[name] for name in secret}
        self._conf = given if remote is not None else {n: v for n, v in given.items() if n not in secret}
        self._adds_packages = packages is not None and arguments.choice("spark_packages", packages, ("auto",)) == "auto"
        if self._adds_packages and remote is not None:
            raise InvalidError(
                'spark_packages="auto" cannot add packages to a Spark Connect server: start the server with them'
            )
        self._logs_to_stdout = logs_to_stdout
        self._cancelled = Event()
        self._interrupt: Callable[[], None] | None = None
        self._application: telemetry.SparkFound | None = None

    def session(self, needed: Sequence[Package] = ()) -> SparkSession:
        """
        The session of this process; started where there is none, or where its JVM has died.

        :param needed: the packages that a session which is started loads, if this engine adds packages
        :raises InvalidError: pyspark is not installed, is mixed with another version of its client, or is the Connect-only client and no server is named
        :raises StageError: Spark did not start
        """
        versions.check()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else executors take the first python3 on the PATH
        return self._classic_session(needed) if self._remote is None else self._remote_session(self._remote)

    def _classic_session(self, needed: Sequence[Package]) -> SparkSession:
        try:
            from pyspark.core.context import SparkContext  # noqa: F401
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise InvalidError(
                "classic pyspark is not installed", accepted="pip install 'airflow-provider-streamsem[spark]'"
            ) from error
        from airflow_provider_streamsem.engines import gateway

        gateway.forget_dead_jvm()
        builder = SparkSession.builder
        if SparkSession.getActiveSession() is None:
            builder = builder.appName("streamsem").master(self._master)
            quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
            conf = packages.added(self._conf, needed) if self._adds_packages else self._conf
            for key, value in {**quiet, **_s3a_settings(), **conf}.items():
                builder = builder.config(key, value)
            if late := [name for name in self._secret if not name.startswith(_HADOOP)]:
                raise InvalidError(
                    "settings hold secrets, and the command line of Spark's JVM is visible in process lists; nothing was staged",
                    given=late,
                    accepted="spark-defaults.conf in SPARK_CONF_DIR",
                )
        if SparkSession.getActiveSession() is None and _java() is None:
            raise InvalidError(
                "Java was not found, and Spark needs it; nothing was staged",
                java_home=os.environ.get("JAVA_HOME", ""),
                accepted="Java 17 or 21: on the PATH, or with JAVA_HOME set to its directory, for the process that runs the task",
            )
        try:
            starts = SparkSession.getActiveSession() is None
            with _stderr_as_stdout() if starts and self._logs_to_stdout else nullcontext():
                return builder.getOrCreate()
        except Exception as error:
            if self._cancelled.is_set():
                raise StageError(
                    "the task was ended while Spark started; nothing was staged, and the version stays open"
                ) from None
            raise StageError("Spark did not start; nothing was staged", master=self._master).advising(
                "read what Spark says above, correct the master, the settings or the memory of the process, and run again."
            ) from error

    def _remote_session(self, remote: str) -> SparkSession:
        try:
            from pyspark.sql import SparkSession
            from pyspark.sql.connect import client  # noqa: F401
        except ImportError as error:
            raise InvalidError(
                "the Spark Connect client is not installed", accepted="pip install pyspark-client"
            ) from error
        try:
            builder = SparkSession.builder.remote(remote)
            for key, value in self._conf.items():
                builder = builder.config(key, value)
            return builder.getOrCreate()
        except Exception as error:
            # The URL may hold a token, and so may the client's own words about it.
            server = _REST.split(remote.removeprefix("sc://"))[0]
            raise StageError(
                "no session on the Spark Connect server; nothing was staged", server=server, error=type(error).__name__
            ) from None

    def stage(self, job: Job, log: CommitLog) -> Produced:
        """Stage one attempt in a clone of the session."""
        needed = packages.needed(job.source, job.sinks, job.dedup, log.store.url)
        user_session = self.session(needed)
        from airflow_provider_streamsem.engines import shipping, staging

        inspect: Any
        settings = dict(SETTINGS)
        if self._remote is None:
            from airflow_provider_streamsem.engines import gateway

            inspect = gateway
            lacking = [package for package in needed if not gateway.contains(user_session, package.contains)]
            if lacking:
                raise InvalidError(
                    "Spark lacks packages that the pipeline needs; nothing was staged, and the version stays open",
                    packages=packages.coordinates(lacking) or [package.coordinates for package in lacking],
                ).advising(
                    'set spark_packages="auto" (command: --spark-packages auto), or add the packages to '
                    f"{packages.SETTING} in spark_conf (--spark-conf), or put the jars on Spark's class path; then run again."
                )
            settings |= _access_settings(s3.access())
            settings |= {n.removeprefix(_HADOOP): value for n, value in self._secret.items() if n.startswith(_HADOOP)}
            telemetry.tell(self._found, user_session)
        else:  # a Connect server has credentials of its own, may log what is set in its session, and does not tell where its pages are
            from airflow_provider_streamsem.engines import remote

            inspect = remote
        try:
            with causes.quiet(), shipping.by_value(), inspect.cloned(user_session, settings) as session:
                with self._interruptible(inspect, session, f"streamsem-{job.attempt_id}"):
                    return staging.Staging(session, inspect, job, log).run()
        except StreamsemError:
            raise
        except Exception as error:
            is_analysis = type(error).__name__ == "AnalysisException"
            raise _translated(error, job) from (causes.short(error) if is_analysis else error)

    @contextmanager
    def _interruptible(self, inspect: Any, session: SparkSession, tag: str) -> Iterator[None]:
        with inspect.tagged(session, tag):
            self._interrupt = partial(inspect.interrupt, session, tag)
            try:
                if self._cancelled.is_set():
                    raise StageError("the task was ended; nothing was staged")
                yield
            finally:
                self._interrupt = None

    def cancel(self) -> None:
        """
        Cancel the Spark jobs of the attempt that is being staged, and stage no other. Nothing is decided by it: the version stays open.

        Call it from another thread than the one that stages: that one's connection to the JVM waits for an answer.
        """
        self._cancelled.set()
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def _found(self, session: SparkSession) -> telemetry.SparkFound:
        """Asked once, and only where somebody listens."""
        if self._application is None:
            context = session.sparkContext
            self._application = telemetry.SparkFound(application_id=context.applicationId, ui=context.uiWebUrl or "")
        return self._application


def _java() -> str | None:
    """The Java that Spark's launcher would start; ``None`` where there is none."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(os.path.join(home, "bin", "java") if home else "java")


@contextmanager
def _stderr_as_stdout() -> Iterator[None]:
    """A process that is started in the block gets our standard output as its standard error."""
    with suppress(OSError):  # whoever read it is gone, as the supervisor of a task that Airflow has given up
        sys.stderr.flush()
    kept = os.dup(2)
    try:
        os.dup2(1, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def engine_of(
    found: Connection,
    conf: Mapping[str, str] | None = None,
    *,
    packages: str | None = None,
    logs_to_stdout: bool = False,
) -> SparkEngine:
    """
    The engine that a connection names.

    :param found: of type ``spark`` (host and port make the master, as in Airflow's Spark provider) or ``spark_connect`` (login: user id, password: token)
    :raises InvalidError: no host, or it asks for cluster mode
    """
    if not found.host:
        raise InvalidError("a spark connection must have a host", conn_id=found.conn_id, conn_type=found.conn_type)
    if found.conn_type == "spark_connect":
        host = found.host if "://" in found.host else f"sc://{found.host}"
        given = {
            "user_id": found.login,
            "token": found.password,
            "use_ssl": str(found.extra.get("use_ssl", "")).lower(),
        }
        words = [f"{name}={quote(value, safe='')}" for name, value in given.items() if value]
        address = f"{host}:{found.port}" if found.port else host
        return SparkEngine(remote=f"{address}/;{';'.join(words)}" if words else address, conf=conf, packages=packages)
    if found.extra.get("deploy-mode") == "cluster":
        raise InvalidError(
            "the driver of a batch is the task's own process",
            conn_id=found.conn_id,
            given="deploy-mode cluster",
            accepted="client",
        )
    whole = "://" in found.host or (found.conn_type == "spark" and not found.port)
    master = found.host if whole else f"{found.conn_type}://{found.host}"
    settings = {
        name: str(found.extra[key])
        for key, name in (("queue", "spark.yarn.queue"), ("namespace", "spark.kubernetes.namespace"))
        if found.extra.get(key)
    }
    address = f"{master}:{found.port}" if found.port else master
    settings |= conf or {}
    return SparkEngine(master=address, conf=settings, packages=packages, logs_to_stdout=logs_to_stdout)


def _s3a_settings() -> dict[str, str]:
    """Where boto3 is told by variables to find S3, Spark is told the same; credentials are left to S3A's own chain, which reads the same variables."""
    settings: dict[str, str] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        settings |= {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def _access_settings(given: s3.S3Access) -> dict[str, str]:
    """The access that is in force, for S3A: in the attempt's own session, so that no command line and no other session holds it."""
    settings = {
        "fs.s3a.endpoint": given.endpoint_url,
        "fs.s3a.path.style.access": "true" if given.endpoint_url else None,
        "fs.s3a.endpoint.region": given.region_name,
        "fs.s3a.access.key": given.access_key_id,
        "fs.s3a.secret.key": given.secret_access_key,
        "fs.s3a.session.token": given.session_token,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _translated(error: Exception, job: Job) -> StreamsemError:
    """What a failure inside Spark means to a user. Its text is chained, not quoted: it may hold values of records. A path is no such value."""
    version = job.plan.version
    conditions = list(_conditions(error))
    for condition, path in conditions:
        if condition.startswith("FAILED_READ_FILE"):
            return DataError(
                "a planned file cannot be read as its format and schema; nothing became visible",
                version=version,
                file=_plain(path),
                condition=condition,
            ).advising(UNREADABLE_FILE)
        if condition == "PATH_NOT_FOUND":
            file = _plain(path)
            what = "Spark does not find a planned file; nothing became visible"
            if not file.isascii():
                what += ". If it is there, Java may run in a locale that is not UTF-8: set LC_ALL=C.UTF-8 on driver and executors"
            return StageError(what, version=version, file=file)
        if condition.startswith(_OF_THE_DATA):
            what = "the transform or the predicate `where` does not fit the data; nothing became visible"
            return DataError(what, version=version, condition=condition, **_files(job))
    kind = type(error).__name__
    condition = conditions[0][0] if conditions else ""
    if kind == "AnalysisException":
        from airflow_provider_streamsem.engines.staging import named

        what = "the transform does not fit the columns that it gets; nothing became visible"
        return DataError(what, version=version, condition=condition, **named(error), **_files(job))
    if isinstance(job.source, KafkaSource) and any(
        "ArithmeticException: long overflow" in text for text in _texts(error)
    ):
        return DataError(
            "a record of the planned ranges has a timestamp beyond the year 294246, which Spark cannot read (nanoseconds in the place of milliseconds?); "
            "nothing became visible",
            version=version,
            ranges=dict(job.plan.ranges),
        ).advising(
            "have the producer send milliseconds, or set message.timestamp.type=LogAppendTime on the topic. To get past the record, delete the records up to "
            'it (kafka-delete-records.sh) and run again with on_data_loss="record_gap".'
        )
    refusal = next((found[0] for text in _texts(error) if (found := _REFUSAL.search(text))), None)
    if refusal is not None:
        what = "the store refuses what Spark reads or writes; nothing became visible"
        return StoreRefusedError(what, version=version, refusal=refusal, **_files(job))
    return StageError(
        "the engine failed while staging; nothing became visible",
        version=version,
        error=kind,
        **({"condition": condition} if condition else {}),
        **({"transform": job.transform_name} if job.transform_name else {}),
        **_files(job),
    )


def _files(job: Job) -> dict[str, object]:
    """The planned files, where Spark does not say which one an error is about: the first, and how many."""
    if not isinstance(job.source, FilesSource):
        return {}
    return {"files": len(job.plan.pins), "first_file": job.plan.pins[0][0]}


def _plain(uri: str) -> str:
    from airflow_provider_streamsem.sources.text_lines import plain_path

    return plain_path(uri)


def _texts(error: BaseException) -> Iterator[str]:
    """What an error and its causes in the JVM say."""
    yield str(error)
    cause: Any = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    while cause is not None:
        with suppress(Exception):
            yield str(cause.toString())
        try:
            cause = cause.getCause()
        except Exception:
            break


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
