"""
The Spark engine. It stages attempts in a Spark session of this process, which the first attempt starts and all later ones use.

Each attempt runs in a clone of the session, in which :data:`SETTINGS` replace the user's values. So the settings do not change the user's session. This
module imports pyspark only when a session is first requested.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from threading import Event
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_streamsem import arguments, secret_names, telemetry
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.engine import Job, Produced, RewriteJob, RewrittenFiles
from airflow_provider_streamsem.errors import InvalidError, StageError, StreamsemError
from airflow_provider_streamsem.protocol.entries import DataFile
from airflow_provider_streamsem.spark import (
    causes,
    connect_failures,
    failures,
    installations,
    java,
    jvm_exceptions,
    packages,
    versions,
)
from airflow_provider_streamsem.spark.packages import Package
from airflow_provider_streamsem.stores import s3

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.sql.files.ignoreCorruptFiles": "false",
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # In mode LEGACY, Spark writes dates before 1582 in the Julian calendar, and marks the file. Other engines ignore this mark.
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # With true, Spark reads an empty string in a numeric column as null instead of as a bad record.
    "spark.sql.legacy.json.allowEmptyString.enabled": "false",
    # With true, Spark replaces ${name} by the value of a setting or by nothing, also in quoted names and in text.
    "spark.sql.variable.substitute": "false",
    # With true, an empty array has elements of type string.
    "spark.sql.legacy.createEmptyCollectionUsingStringType": "false",
    # With true, Spark treats a quoted name as a regular expression, which may match no column or several.
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # With true, Spark reads a column as null if the case of its name differs from that in the schema.
    "spark.sql.caseSensitive": "false",
    # With a lower limit, Hadoop skips longer lines without an error.
    "mapreduce.input.linerecordreader.line.maxlength": str(2**31 - 1),
    # With true, Spark reads ORC columns by position.
    "orc.force.positional.evolution": "false",
    # By default, Spark starts a job to list files if there are more than 32 paths. This is unnecessary, because the plan names the files.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
    # Since Spark 4.1: bounds the memory of a Python worker. By default, a batch of long records has up to 2 GiB.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(1 << 26),
    # Since Spark 4.1: if a retry of a shuffle returns different rows, Spark reruns all stages that depend on it, instead of mixing two results.
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "true",
    "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch": "true",
}

_HADOOP = "spark.hadoop."
_UNSTAGED = "nothing was staged, and the version stays open"
_UNPUBLISHED = "nothing of the batch was published, and the version stays committed"
_REST = re.compile("[/;?]")


class SparkEngine:
    """
    Stages batches in a Spark session of this process: classic PySpark in client mode, or Spark Connect.

    :param master: the Spark master, for a session that the engine starts. If the process already has a Spark session, the engine uses that session with its
        settings
    :param remote: ``sc://host:port`` of a Spark Connect server, instead of a master. All Spark sessions of the process then use Spark Connect
    :param conf: Spark settings for a session that the engine starts
    :param packages: ``"auto"``: a session that the engine starts loads the packages that the pipeline needs, from Maven Central or
        ``spark.jars.repositories``. ``None``: the packages must be on Spark's class path, or ``conf`` must name them
    :param logs_to_stdout: whether the JVM logs to standard output, because Airflow shows the standard error of a task as errors
    :raises InvalidError: an argument is not valid
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
            raise InvalidError("remote must be the URL of a Spark Connect server", accepted="sc://host:port")
        self._remote = remote
        settings = arguments.options("spark conf", conf or {})
        secret = secret_names.secret_settings(settings)
        self._secret = {name: settings[name] for name in secret}
        self._conf = settings if remote is not None else {n: v for n, v in settings.items() if n not in secret}
        self._adds_packages = packages is not None and arguments.choice("spark_packages", packages, ("auto",)) == "auto"
        if self._adds_packages and remote is not None:
            raise InvalidError(
                'spark_packages="auto" is not valid with Spark Connect, because a client cannot add packages to the server'
            ).advising("start the server with the packages of the pipeline, and remove spark_packages.")
        self._logs_to_stdout = logs_to_stdout
        self._cancelled = Event()
        self._interrupt: Callable[[], None] | None = None
        self._application: telemetry.SparkStarted | None = None

    @property
    def keeps_state(self) -> bool:
        """Whether the engine supports pipelines with state: the installed Spark does, and the engine does not use Spark Connect."""
        return versions.keeps_state(remote=self.is_remote)

    @property
    def is_remote(self) -> bool:
        """Whether the engine uses Spark Connect, so that the driver's JVM is on a server."""
        return self._remote is not None

    def session(self, needed: Sequence[Package] = ()) -> SparkSession:
        """
        Return the Spark session of this process. If there is none, or if its JVM has ended or its context has stopped, start one.

        :param needed: the packages that a new session loads, if ``packages`` is ``"auto"``
        :raises InvalidError: pyspark or Java is not installed; pyspark and pyspark-client have different versions; only the Spark Connect client is installed
            and no server is given; or ``conf`` contains secrets
        :raises StageError: Spark did not start, or the task was cancelled
        """
        versions.check()
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise executors use the first python3 on the PATH
        return self._classic_session(needed) if self._remote is None else self._remote_session(self._remote)

    def _classic_session(self, needed: Sequence[Package]) -> SparkSession:
        try:
            from pyspark.core.context import SparkContext  # noqa: F401
            from pyspark.sql import SparkSession
        except ImportError as error:
            raise InvalidError("classic pyspark is not installed").advising(
                "run `pip install 'airflow-provider-streamsem[spark]'`."
            ) from error
        from airflow_provider_streamsem.spark import gateway

        gateway.forget_dead_jvm()
        gateway.forget_stopped_context()
        starts = SparkSession.getActiveSession() is None
        builder = SparkSession.builder
        if starts:
            self._check_can_start()
            builder = builder.appName("streamsem").master(self._master)
            for key, value in self._start_settings(needed).items():
                builder = builder.config(key, value)
        try:
            with _stderr_as_stdout() if starts and self._logs_to_stdout else nullcontext():
                return builder.getOrCreate()
        except Exception as error:
            if self._cancelled.is_set():
                raise StageError(
                    "the task was cancelled while Spark started; nothing was staged, and the version stays open"
                ) from None
            raise self._start_error(error) from error

    def _check_can_start(self) -> None:
        if shown := [name for name in self._secret if not name.startswith(_HADOOP)]:
            raise InvalidError(
                "Spark settings contain secrets, which the command line of Spark's JVM would show to all users of the machine; nothing was staged",
                given=shown,
                accepted="spark-defaults.conf in SPARK_CONF_DIR",
            )
        java.check()

    def _start_settings(self, needed: Sequence[Package]) -> dict[str, str]:
        quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        conf = packages.added(self._conf, needed) if self._adds_packages else self._conf
        return {**quiet, **_s3a_settings(), **conf}

    def _start_error(self, error: Exception) -> StreamsemError:
        texts = jvm_exceptions.texts(error)
        refused = installations.refused_setting(texts, jvm_exceptions.conditions(error), self._master)
        if refused is not None:
            return refused
        if type(error).__name__ in ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError"):
            return StageError(
                "Spark's process ended while it started; nothing was staged", master=self._master
            ).advising(
                "run again. If it keeps ending, look for an out-of-memory kill, and give the process more memory."
            )
        return StageError("Spark did not start; nothing was staged", master=self._master).advising(
            "run again. If it fails again, read Spark's output above: correct the master or the settings. Without output, the process of Spark was killed, for "
            "example because memory was short: give it more memory."
        )

    def _remote_session(self, remote: str) -> SparkSession:
        try:
            from pyspark.sql import SparkSession
            from pyspark.sql.connect import client  # noqa: F401
        except ImportError as error:
            raise InvalidError("the Spark Connect client is not installed").advising(
                "run `pip install pyspark-client`."
            ) from error
        from airflow_provider_streamsem.spark import remote as connect

        try:
            builder = SparkSession.builder.remote(remote)
            for key, value in self._conf.items():
                builder = builder.config(key, value)
            return connect.opened(builder)
        except Exception as error:
            # The URL and the client's error message may contain a token, so neither is shown and the error is not chained.
            server = _REST.split(remote.removeprefix("sc://"))[0]
            raise connect_failures.not_opened(error, server) from None

    def stage(self, job: Job, log: CommitLog) -> Produced:
        """
        Stage in a clone of the session. Raises ``InvalidError`` if Spark lacks packages or no session can be started, and ``StoreRefusedError`` if a store
        refuses a request of Spark.
        """
        if job.state_settings is not None:
            versions.check_state(remote=self.is_remote)
        needed = packages.needed((job.source, *job.lookups.values()), job.sinks, job.dedup, log.store.url)
        try:
            with self._attempt_session(needed, job.attempt_id) as (session, inspect):
                from airflow_provider_streamsem.spark import staging

                return staging.Staging(session, inspect, job, log).run()
        except StreamsemError:
            raise
        except Exception as error:
            self._raise_if_cancelled()
            raise failures.translated(error, job) from causes.chained(error)

    def rewrite(self, job: RewriteJob, log: CommitLog) -> RewrittenFiles:
        """Rewrite in a clone of the session. Raises ``InvalidError`` and ``StoreRefusedError`` as :meth:`stage` does."""
        with self._rewriting_session(job.sink, job.attempt_id, version=job.version) as session:
            from airflow_provider_streamsem.spark import rewriting

            return rewriting.rewrite(session, job)

    def count_selected(
        self, sink: Sink, files: Sequence[DataFile], schema: str, predicate: Predicate
    ) -> Mapping[str, int] | None:
        """Count in a clone of the session."""
        if not predicate.applies_to(schema, sink.location):
            return None
        with self._rewriting_session(sink, SYSTEM_CLOCK.new_id()) as session:
            from airflow_provider_streamsem.spark import rewriting

            return rewriting.count_selected(session, sink, files, schema, predicate)

    @contextmanager
    def _rewriting_session(self, sink: Sink, attempt_id: str, **where: int) -> Iterator[SparkSession]:
        try:
            with self._attempt_session(packages.needed((), {"": sink}, None, ""), attempt_id) as (session, _):
                yield session
        except StreamsemError:
            raise
        except Exception as error:
            self._raise_if_cancelled()
            raise failures.rewrite_error(error, sink, **where) from error

    @contextmanager
    def publishing_session(self, sink: Sink, *, later: Sequence[Package] = ()) -> Iterator[SparkSession]:
        """
        Yield a clone of the session. A new session also loads the packages ``later``, because they cannot be added later.

        :raises InvalidError: Spark lacks packages or settings that the sink needs, or no session can be started
        :raises UnavailableError: Spark failed within the block, and a retry may succeed
        :raises PublishError: Spark refused the data within the block
        """
        if self.is_remote and not sink.spark_packages:
            summary = f"the packages of a Spark Connect server are not known; {_UNPUBLISHED}"
            raise InvalidError(summary).advising("set engine='spark' of the sink if the server has the packages.")
        needed = [*packages.named(sink.publishing_packages), *packages.needed((), {"": sink}, None, "")]
        try:
            self.session([*dict.fromkeys([*needed, *later])])
            with self._attempt_session([*dict.fromkeys(needed)], SYSTEM_CLOCK.new_id(), _UNPUBLISHED) as (session, _):
                yield session
        except StreamsemError:
            raise
        except Exception as error:
            self._raise_if_cancelled(_UNPUBLISHED)
            if not jvm_exceptions.is_of_spark(error):
                raise
            raise failures.publish_error(error, sink) from None  # the messages of Spark may contain values of records

    def _raise_if_cancelled(self, effect: str = "nothing became visible, and the version stays open") -> None:
        """Raise the error for a cancelled task. It replaces that of the interrupted job, whose traces would hide the log of the task."""
        if self._cancelled.is_set():
            raise StageError(f"the task was cancelled while Spark worked; {effect}") from None

    @contextmanager
    def _attempt_session(
        self, needed: Sequence[Package], attempt_id: str, effect: str = _UNSTAGED
    ) -> Iterator[tuple[SparkSession, Any]]:
        """
        Another thread can interrupt the jobs of the clone. Yields the clone, and the module that inspects its plans.

        :param effect: what is true now if Spark lacks packages, as the second part of an error's summary
        """
        user_session = self.session(needed)
        from airflow_provider_streamsem.spark import shipping

        inspect: Any
        settings = dict(SETTINGS)
        if self._remote is None:
            from airflow_provider_streamsem.spark import gateway

            inspect = gateway
            lacking = [package for package in needed if not gateway.contains(user_session, package.contains)]
            if lacking:
                raise InvalidError(
                    f"Spark lacks packages that the pipeline needs; {effect}",
                    packages=packages.coordinates(lacking) or [package.coordinates for package in lacking],
                ).advising(
                    'set spark_packages="auto" (command: --spark-packages auto), or add the packages to '
                    f"{packages.SETTING} in spark_conf (--spark-conf), or put the jars on Spark's class path; then run again."
                )
            unset = packages.missing_settings(needed, lambda name: str(user_session.conf.get(name, "")))
            if unset:
                raise InvalidError(
                    f"the Spark session lacks settings that the pipeline needs; {effect}", **unset
                ).advising(
                    "set them in spark_conf (--spark-conf) or in spark-defaults.conf, and restart the process, because they are read when Spark starts; or set "
                    'spark_packages="auto" (command: --spark-packages auto).'
                )
            settings |= _access_settings(s3.access())
            settings |= {n.removeprefix(_HADOOP): value for n, value in self._secret.items() if n.startswith(_HADOOP)}
            telemetry.emit(self._spark_started, user_session)
        else:
            # A Spark Connect server has its own credentials, and may log the settings of a session. So this engine sends it no credentials.
            from airflow_provider_streamsem.spark import remote

            inspect = remote
        with causes.quiet(), shipping.by_value(), inspect.cloned(user_session, settings) as session:
            with self._interruptible(inspect, session, f"streamsem-{attempt_id}"):
                yield session, inspect

    @contextmanager
    def _interruptible(self, inspect: Any, session: SparkSession, tag: str) -> Iterator[None]:
        with inspect.tagged(session, tag):
            self._interrupt = partial(inspect.interrupt, session, tag)
            try:
                if self._cancelled.is_set():
                    raise StageError("the task was cancelled; nothing was staged")
                yield
            finally:
                self._interrupt = None

    def cancel(self) -> None:
        """
        Cancel the Spark jobs of the current attempt, and refuse further attempts. The version stays open.

        Another thread than the one that stages must call this method, because the staging thread is blocked until the JVM responds.
        """
        self._cancelled.set()
        causes.silence_py4j()
        interrupt = self._interrupt
        if interrupt is not None:
            interrupt()

    def _spark_started(self, session: SparkSession) -> telemetry.SparkStarted:
        if self._application is None:
            context = session.sparkContext
            self._application = telemetry.SparkStarted(application_id=context.applicationId, ui=context.uiWebUrl or "")
        return self._application


@contextmanager
def _stderr_as_stdout() -> Iterator[None]:
    """Within the block, redirect the standard error of this process, and of processes that it starts, to standard output."""
    # The process that reads the pipe may have ended, for example the supervisor of a task that Airflow considers lost.
    with suppress(OSError):
        sys.stderr.flush()
    stderr = os.dup(2)
    try:
        os.dup2(1, 2)
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


def engine_of(
    conn: Connection,
    conf: Mapping[str, str] | None = None,
    *,
    packages: str | None = None,
    logs_to_stdout: bool = False,
) -> SparkEngine:
    """
    Create the engine that a connection describes: of type ``spark`` (host and port form the master, as in Airflow's Spark provider) or ``spark_connect``
    (login: user id, password: token). The other arguments are those of :class:`SparkEngine`.
    """
    if not conn.host:
        raise InvalidError("the Spark connection has no host", conn_id=conn.conn_id, conn_type=conn.conn_type)
    if conn.conn_type == "spark_connect":
        host = conn.host if "://" in conn.host else f"sc://{conn.host}"
        parameters = {
            "user_id": conn.login,
            "token": conn.password,
            "use_ssl": str(conn.extra.get("use_ssl", "")).lower(),
        }
        words = [f"{name}={quote(value, safe='')}" for name, value in parameters.items() if value]
        address = f"{host}:{conn.port}" if conn.port else host
        return SparkEngine(remote=f"{address}/;{';'.join(words)}" if words else address, conf=conf, packages=packages)
    if conn.extra.get("deploy-mode") == "cluster":
        raise InvalidError(
            "the connection requests deploy mode cluster, but the process of the task is the Spark driver",
            conn_id=conn.conn_id,
            given="deploy-mode cluster",
            accepted="client",
        )
    has_full_url = "://" in conn.host or (conn.conn_type == "spark" and not conn.port)
    master = conn.host if has_full_url else f"{conn.conn_type}://{conn.host}"
    settings = {
        name: str(conn.extra[key])
        for key, name in (("queue", "spark.yarn.queue"), ("namespace", "spark.kubernetes.namespace"))
        if conn.extra.get(key)
    }
    address = f"{master}:{conn.port}" if conn.port else master
    settings |= conf or {}
    return SparkEngine(master=address, conf=settings, packages=packages, logs_to_stdout=logs_to_stdout)


def _s3a_settings() -> dict[str, str]:
    """S3A reads credentials, but not endpoint and region, from the environment variables that boto3 reads."""
    settings: dict[str, str] = {}
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    if endpoint:
        settings |= {"spark.hadoop.fs.s3a.endpoint": endpoint, "spark.hadoop.fs.s3a.path.style.access": "true"}
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if region:
        settings["spark.hadoop.fs.s3a.endpoint.region"] = region
    return settings


def _access_settings(access: s3.S3Access) -> dict[str, str]:
    """Return S3A settings for an S3 access. They contain credentials, so they are set only in the clone in which an attempt runs."""
    settings = {
        "fs.s3a.endpoint": access.endpoint_url,
        "fs.s3a.path.style.access": "true" if access.endpoint_url else None,
        "fs.s3a.endpoint.region": access.region_name,
        "fs.s3a.access.key": access.access_key_id,
        "fs.s3a.secret.key": access.secret_access_key,
        "fs.s3a.session.token": access.session_token,
    }
    return {name: value for name, value in settings.items() if value is not None}
