"""Submits the Spark driver of a run through Airflow's Spark provider. The task plans the run, the driver stages and commits it."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from airflow_provider_streamsem.connections import Connection, to_environment
from airflow_provider_streamsem.errors import InvalidError, StageError
from airflow_provider_streamsem.hooks.connections import airflow_connection
from airflow_provider_streamsem.pipeline.run import submit_app
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.secret_names import secret_settings

logger = logging.getLogger(__name__)

GRACE_S = 5.0
_SUBMITTED_WITHIN_S = 600.0
PROCESS = "_submit_sp"
DRIVER_IDS = ("_driver_id", "_yarn_application_id", "_kubernetes_driver_pod")
"""
Non-public attributes of Airflow's ``SparkSubmitHook``: the process of ``spark-submit``, and the ids of a driver on a cluster. The hook has no public
names for them. Tried with apache-airflow-providers-apache-spark 5.3.2, 5.6.0 and 6.3.4.
"""


@dataclass(slots=True)
class ConnectionRecorder:
    """A connection resolver that records every connection that it returns. The task passes the recorded connections to the driver."""

    recorded: dict[str, Connection] = field(default_factory=dict)

    def __call__(self, conn_id: str) -> Connection:
        """Look up and record a connection."""
        self.recorded[conn_id] = airflow_connection(conn_id)
        return self.recorded[conn_id]

    def need(self, pipeline: Pipeline) -> None:
        """Look up and record every connection that the spec names. Planning alone may not look up all of them."""
        for conn_id in sorted(set(_conn_ids(pipeline.to_json()))):
            self(conn_id)

    def environment(self) -> dict[str, str]:
        """
        Return the recorded connections as ``AIRFLOW_CONN_<ID>`` environment variables for a driver on this machine.

        They contain secrets. Never put them on a command line, which every user of the machine can read.
        """
        return dict(to_environment(connection) for connection in self.recorded.values())


def _conn_ids(spec: Any) -> Iterator[str]:
    if isinstance(spec, Mapping):
        for name, value in spec.items():
            if name in ("conn_id", "log_conn_id", "registry_conn_id") and isinstance(value, str):
                yield value
            yield from _conn_ids(value)


class Submission:
    """
    Runs ``spark-submit`` once for a run. The constructor submits nothing.

    :param run_key: the run key of the task, under which the driver continues the run
    :param drain: as in :func:`run_batch`
    :param conn_id: Spark connection. Its ``deploy-mode`` determines where the driver runs. In client mode the driver runs on the worker's machine, in a
        separate process session, and may continue after the task has ended
    :param conf: settings for ``spark-submit``, visible in process lists
    :raises InvalidError: the connection is not of type ``spark`` or has no host, or a setting contains a secret
    """

    def __init__(
        self, pipeline: Pipeline, *, run_key: str, drain: bool, conn_id: str, conf: Mapping[str, str] | None
    ) -> None:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        connection = airflow_connection(conn_id)
        if connection.conn_type != "spark" or not connection.host:  # without a host, the hook would submit to YARN
            raise InvalidError(
                'run_in="submit" requires a connection of type spark with a host; nothing was submitted',
                conn_id=conn_id,
                conn_type=connection.conn_type,
            )
        if secrets := secret_settings(conf or {}):
            raise InvalidError(
                "settings contain secrets, and the command line of spark-submit is visible in process lists; nothing was submitted",
                given=secrets,
                accepted="spark-defaults.conf of the submitting Spark, a Hadoop credential provider, or a Kubernetes secret",
            )
        self._is_cluster = connection.extra.get("deploy-mode") == "cluster"
        self._application = submit_app.__file__
        self._hook: Any = SparkSubmitHook(
            conn_id=conn_id,
            conf=dict(conf or {}),
            name=f"streamsem-{pipeline.name}",
            application_args=submit_app.arguments(pipeline, run_key=run_key, drain=drain),
        )
        self._failed: list[BaseException] = []

    def start(self, connections: ConnectionRecorder) -> None:
        """
        Submit the driver, and return without waiting for its end.

        In client mode this method returns after about five seconds. In cluster mode it returns when the cluster has assigned an id to the driver, after at
        most ten minutes.

        :raises StageError: ``spark-submit`` failed before this method returned. The version stays open
        """
        thread: Any = Thread(target=self._submit, args=(connections.environment(),), name="spark-submit", daemon=True)
        thread.start()
        waited = 0.0
        while thread.is_alive() and waited < (_SUBMITTED_WITHIN_S if self._is_cluster else GRACE_S):
            if self._is_cluster and any(getattr(self._hook, name, None) for name in DRIVER_IDS):
                break
            thread.join(1)
            waited += 1
        self._raise_failure()

    def end(self) -> None:
        """Terminate ``spark-submit``, and in client mode the driver. Versions that the driver has committed stay committed."""
        process = getattr(self._hook, PROCESS, None)
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def wait(self, connections: ConnectionRecorder) -> None:
        """
        Submit the driver and return when ``spark-submit`` has ended. In client mode the driver has then ended too.

        :raises StageError: ``spark-submit`` failed. The version stays open
        """
        self._submit(connections.environment())
        self._raise_failure()

    def _submit(self, environment: dict[str, str]) -> None:
        try:
            # A new process session, so that a signal to the task's process group does not terminate the driver.
            self._hook.submit(self._application, start_new_session=True, env={**os.environ, **environment})
        except Exception as error:
            self._failed.append(error)
            logger.error("spark-submit failed; its output is above: %s", error)

    def _raise_failure(self) -> None:
        if self._failed:
            raise StageError(
                "spark-submit failed; committed versions stay committed, and an open version stays open"
            ) from self._failed[0]


def refuse_unnamed_transform(pipeline: Pipeline, task_id: str) -> None:
    """
    Refuse a transform that the driver cannot import by its name.

    :raises InvalidError: the transform is a lambda, a nested function, or a function of a DAG file
    """
    name = pipeline.transform_name
    # A qualified name with "<" is a lambda or a nested function. Airflow imports DAG files as modules "unusual_prefix_…", which only Airflow can import.
    if "<" in name or getattr(pipeline.transform, "__module__", "").startswith("unusual_prefix"):
        raise InvalidError(
            'run_in="submit" requires a transform that the driver can import by its name; nothing was submitted',
            task=task_id,
            given=name,
            accepted="package.module:function",
        )
