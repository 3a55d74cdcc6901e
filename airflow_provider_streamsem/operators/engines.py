"""Where a task's batches are computed, and how that is ended when the task is."""

from __future__ import annotations

from threading import Thread
from typing import Any

from airflow_provider_streamsem.arguments import choice, text
from airflow_provider_streamsem.batch.pipeline import Pipeline, load_spark_conf
from airflow_provider_streamsem.engines import packages
from airflow_provider_streamsem.engines.contract import Engine
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.hooks import settings
from airflow_provider_streamsem.hooks.lookup import airflow_connection

_PATIENCE_S = 2.0


class HasEngine:
    """
    What an operator that runs Spark is, too.

    :ivar spark_master: Spark master where no session is active in the task's process
    :ivar spark_conn_id: instead of a master: a connection of type ``spark`` or ``spark_connect``
    :ivar spark_conf: settings of a session that is started for the task; they override those of the table ``[spark_conf]`` of a pipeline file
    :ivar spark_packages: ``"auto"``: that session loads the packages that the pipeline needs
    """

    task_id: str
    pipeline_file: str | None
    _engine: Engine | None = None

    def take_engine(
        self,
        spark_master: str | None,
        spark_conn_id: str | None,
        spark_conf: dict[str, str] | None,
        spark_packages: str | None,
    ) -> None:
        """
        Keep the arguments.

        :raises InvalidError: both a master and a connection
        """
        if spark_conn_id is not None and spark_master is not None:
            raise InvalidError("spark_conn_id and spark_master exclude each other", task=self.task_id)
        self.spark_master = None if spark_master is None else text("spark_master", spark_master)
        self.spark_conn_id = None if spark_conn_id is None else text("spark_conn_id", spark_conn_id)
        self.spark_conf = spark_conf
        self.spark_packages = None if spark_packages is None else choice("spark_packages", spark_packages, ("auto",))

    def engine(self) -> Engine:
        """The engine of this task: the connection or master that it names, else ``[streamsem] spark_conn_id``, else ``local[*]``."""
        conf = self._conf()
        from airflow_provider_streamsem.engines import spark

        given: dict[str, Any] = {"packages": self.spark_packages, "logs_to_stdout": True}
        conn_id = self.spark_conn_id or (None if self.spark_master else settings.spark_conn_id())
        if conn_id is not None:
            self._engine = spark.engine_of(airflow_connection(conn_id), conf, **given)
        else:
            master = self.spark_master or "local[*]"
            self._engine = spark.SparkEngine(master=master, conf=conf, **given)
        return self._engine

    def conf_for(self, pipeline: Pipeline) -> dict[str, str]:
        """``spark_conf``, with the packages that the pipeline needs where ``spark_packages`` asks for them: for an application that is submitted."""
        conf = self._conf()
        return conf if self.spark_packages is None else packages.added(conf, pipeline.spark_packages)

    def _conf(self) -> dict[str, str]:
        """The settings of the pipeline file, and over them those of the task."""
        from_file = load_spark_conf(self.pipeline_file) if self.pipeline_file else {}
        return {**from_file, **(self.spark_conf or {})}

    def on_kill(self) -> None:
        """
        Cancel the Spark jobs of the attempt; nothing is decided. The version stays open for the retry, or for any other run.

        Airflow calls this inside a signal handler and lets the task go on afterwards: the cancelled attempt then fails by itself.
        """
        engine = self._engine
        if engine is None:
            return
        cancelling: Any = Thread(target=engine.cancel, name="streamsem-cancel", daemon=True)
        cancelling.start()
        cancelling.join(_PATIENCE_S)
