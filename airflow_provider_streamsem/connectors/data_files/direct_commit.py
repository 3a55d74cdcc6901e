"""
Writes files directly under their final names, with the writer and the commit protocol of Spark's streaming file sink.

Every task attempt writes under unique random names. Spark's driver writes a list of the files of the task attempts that it has accepted. With this list, no
file must be renamed. It never contains a file of a task attempt that failed, or of a speculative attempt that was not accepted.

The JVM classes that this module uses are not public API. They were tried in Spark 4.0 and 4.1. If a class is missing, :func:`is_possible` returns ``False``.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from functools import lru_cache, reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Options that select Hadoop's raw local file system. The default one writes a .crc file for each file, and starts a shell to set file modes.
PLAIN_FILES = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}
_FORMATS = {"csv": "CSVFileFormat", "json": "JsonFileFormat", "orc": "OrcFileFormat", "parquet": "ParquetFileFormat"}


def is_possible(session: SparkSession) -> bool:
    """Return whether this module works in a session: Python can call the session's JVM, and the JVM has the required classes."""
    try:
        _classes(jvm.gateway_of(session))
    except Exception:  # a class is missing, or the session uses Spark Connect
        return False
    return True


def write(
    frame: DataFrame, location: str, format: str, *, partition_by: Sequence[str], options: Mapping[str, str]
) -> frozenset[str]:
    """
    Write a DataFrame below a location to which nothing else writes, and return the relative names of the files that Spark has accepted.

    The location may contain other files. The values of partition columns must need no escaping.
    """
    java_session = jvm.session_of(frame.sparkSession)
    spark = _classes(jvm.gateway_of(frame.sparkSession))
    query = jvm.execution_of(frame)
    output = query.analyzed().output()
    columns = {c.name(): c for c in jvm.elements(output)} if partition_by else {}
    java_options = spark.map(options)
    with tempfile.TemporaryDirectory(prefix="streamsem-") as directory:
        job = spark.committer("streamsem", location)
        job.setupManifestOptions(spark.list_in(directory, java_session), 0)
        # The writer runs inside a SQL execution, as in Spark's streaming sink, so that the UI shows it and listeners receive its events.
        spark.execute(
            query, java_session, query.executedPlan(), spark.formats[format](), job, spark.output(location, spark.no_locations, output),
            java_session.sessionState().newHadoopConfWithOptions(java_options),
            spark.sequence([columns[name] for name in partition_by]), spark.scala_none, spark.empty_seq, java_options,
        )  # fmt: skip
        (list_of_files,) = [path for path in Path(directory).iterdir() if not path.name.startswith(".")]
        _, *lines = list_of_files.read_text(encoding="utf-8").strip("\n").split("\n")
    depth = len(partition_by) + 1
    return frozenset("/".join(str(json.loads(line)["path"]).split("/")[-depth:]) for line in lines)


class _MissingError(Exception):
    """Never leaves this module."""


class _Classes:
    def __init__(self, gateway: Any) -> None:
        jvm = gateway.jvm
        execution = jvm.org.apache.spark.sql.execution
        self.committer = _java_class(execution.streaming.ManifestFileCommitProtocol)
        try:
            self._list = _java_class(execution.streaming.sinks.FileStreamSinkLog)
            manager = _java_class(execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager)
        except _MissingError:  # before 4.1
            self._list = _java_class(execution.streaming.FileStreamSinkLog)
            manager = _java_class(execution.streaming.FileSystemBasedCheckpointFileManager)
        self._list_settings = {**PLAIN_FILES, "spark.sql.streaming.checkpointFileManagerClass": manager._fqn}
        writer = _java_class(execution.datasources.FileFormatWriter)
        self.output = writer.OutputSpec
        packages = execution.datasources
        self.formats = {name: _java_class(getattr(getattr(packages, name), kind)) for name, kind in _FORMATS.items()}
        self.scala_none = jvm.scala.Option.empty()
        self.empty_seq = jvm.PythonUtils.toSeq([])
        self.no_locations = jvm.PythonUtils.toScalaMap({})
        self.map = jvm.PythonUtils.toScalaMap
        self.sequence = jvm.PythonUtils.toSeq
        # py4j cannot pass functions to the JVM, so a method handle binds the writer's method to its arguments.
        load = jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass
        (write,) = [m for m in load(writer._fqn).getMethods() if m.getName() == "write"]
        handles = jvm.java.lang.invoke.MethodHandles
        no_static_partitions = gateway.new_array(jvm.java.lang.Object, 1)
        no_static_partitions[0] = 0
        self._write = handles.insertArguments(handles.publicLookup().unreflect(write), 10, no_static_partitions)
        self._implement = jvm.java.lang.invoke.MethodHandleProxies.asInterfaceInstance
        self._function = load("scala.Function0")
        self._execution = execution.SQLExecution.withNewExecutionId
        self._name = jvm.scala.Option.apply("save")

    def list_in(self, directory: str, java_session: Any) -> Any:
        """The log gets a cloned session, so that its settings do not affect the caller's session."""
        session = java_session.cloneSession()
        conf = session.sessionState().conf()
        for name, value in self._list_settings.items():
            conf.setConfString(name, value)
        return self._list(1, session, f"file://{directory}", self.scala_none)

    def execute(self, query: Any, *writer_arguments: Any) -> None:
        write = reduce(lambda handle, argument: handle.bindTo(argument), writer_arguments, self._write)
        try:
            self._execution(query, self._name, self._implement(self._function, write))
        except Exception as error:
            # The interface declares no checked exceptions, so Java wraps them, and pyspark does not recognize the wrapper.
            thrown: Any = getattr(error, "java_exception", None)
            if thrown is None or thrown.getClass().getSimpleName() != "UndeclaredThrowableException":
                raise
            from pyspark.errors.exceptions.captured import convert_exception

            spark_error = convert_exception(thrown.getCause())
            raise spark_error from None


def _java_class(resolved: Any) -> Any:
    from py4j.java_gateway import JavaClass  # the Spark Connect client does not install py4j

    if not isinstance(resolved, JavaClass):  # py4j resolves an unknown name to a package
        raise _MissingError(str(resolved))
    return resolved


_classes = lru_cache(maxsize=1)(_Classes)
