"""Selects the Spark engine of a task and cancels its jobs when Airflow kills the task."""

from __future__ import annotations

from threading import Thread
from typing import Any

from airflow_provider_streamsem.arguments import choice, text
from airflow_provider_streamsem.engine import Engine
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.hooks.connections import airflow_connection
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline, load_spark_conf
from airflow_provider_streamsem.spark import packages

_CANCEL_TIMEOUT_S = 2.0


class HasEngine:
    """
    Mixin for operators that run Spark. See :class:`MicroBatchOperator` for its arguments.

    :ivar spark_master: Spark master URL. The engine uses it only if the task's process has no active Spark session
    :ivar spark_conn_id: a connection of type ``spark`` or ``spark_connect``, as an alternative to a master
    :ivar spark_conf: settings of a Spark session that the task starts. They override the ``[spark_conf]`` table of a pipeline file
    :ivar spark_packages: ``"auto"``: a session that the task starts loads the Spark packages that the pipeline needs
    """

    task_id: str
    pipeline_file: str | None
    _engine: Engine | None = None

    def set_engine(
        self,
        spark_master: str | None,
        spark_conn_id: str | None,
        spark_conf: dict[str, str] | None,
        spark_packages: str | None,
    ) -> None:
        """
        Validate and store the arguments.

        :raises InvalidError: both a master and a connection are given
        """
        if spark_conn_id is not None and spark_master is not None:
            raise InvalidError("spark_conn_id and spark_master exclude each other", task=self.task_id)
        self.spark_master = None if spark_master is None else text("spark_master", spark_master)
        self.spark_conn_id = None if spark_conn_id is None else text("spark_conn_id", spark_conn_id)
        self.spark_conf = spark_conf
        self.spark_packages = None if spark_packages is None else choice("spark_packages", spark_packages, ("auto",))

    def engine(self) -> Engine:
        """
        Create the engine of this task. Starts no Spark session.

        The engine uses the task's connection or master. If the task sets neither, it uses the ``[streamsem] spark_conn_id`` option, and without it
        ``local[*]``.

        :raises InvalidError: the connection does not exist or is not valid, or a Spark setting is not valid
        """
        conf = self._conf()
        from airflow_provider_streamsem.spark import spark_engine as spark

        options: dict[str, Any] = {"packages": self.spark_packages, "logs_to_stdout": True}
        conn_id = self.spark_conn_id or (None if self.spark_master else settings.spark_conn_id())
        if conn_id is not None:
            self._engine = spark.engine_of(airflow_connection(conn_id), conf, **options)
        else:
            master = self.spark_master or "local[*]"
            self._engine = spark.SparkEngine(master=master, conf=conf, **options)
        return self._engine

    def conf_for(self, pipeline: Pipeline) -> dict[str, str]:
        """Return the Spark settings for ``spark-submit``, including the packages that the pipeline needs if ``spark_packages`` is ``"auto"``."""
        conf = self._conf()
        return conf if self.spark_packages is None else packages.added(conf, pipeline.spark_packages)

    def _conf(self) -> dict[str, str]:
        from_file = load_spark_conf(self.pipeline_file) if self.pipeline_file else {}
        return {**from_file, **(self.spark_conf or {})}

    def on_kill(self) -> None:
        """
        Cancel the Spark jobs of the running attempt. The version stays open, and a retry or another run closes it.

        Airflow calls this method in a signal handler, and the task then continues. The attempt fails when its jobs are cancelled. This method waits at most
        two seconds for the cancellation.
        """
        engine = self._engine
        if engine is None:
            return
        cancelling: Any = Thread(target=engine.cancel, name="streamsem-cancel", daemon=True)
        cancelling.start()
        cancelling.join(_CANCEL_TIMEOUT_S)
