"""A run whose driver is not the task: planned here, submitted through Airflow's Spark provider, awaited by the log."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

from airflow_provider_streamsem.arguments import secret_settings
from airflow_provider_streamsem.batch import submit_app
from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.connections import Connection, to_environment
from airflow_provider_streamsem.errors import InvalidError, StageError
from airflow_provider_streamsem.hooks.lookup import airflow_connection

GRACE_S = 5.0
_SUBMITTED_WITHIN_S = 600.0
_NAMES_OF_DRIVERS = ("_driver_id", "_yarn_application_id", "_kubernetes_driver_pod")


@dataclass(slots=True)
class Recorded:
    """Looks connections up and remembers them: those that planning needed, the driver needs, too."""

    seen: dict[str, Connection] = field(default_factory=dict)

    def __call__(self, conn_id: str) -> Connection:
        """The connection of an id."""
        self.seen[conn_id] = airflow_connection(conn_id)
        return self.seen[conn_id]

    def need(self, pipeline: Pipeline) -> None:
        """Look up what the spec names: planning asks for a connection only where there is something to plan."""
        for conn_id in sorted(set(_conn_ids(pipeline.to_json()))):
            self(conn_id)

    def environment(self) -> dict[str, str]:
        """``AIRFLOW_CONN_<ID>`` of each, for a driver on this machine. Not for a command line: every user of the machine sees those."""
        return dict(to_environment(found) for found in self.seen.values())


def _conn_ids(spec: Any) -> Iterator[str]:
    if isinstance(spec, Mapping):
        for name, value in spec.items():
            if name in ("conn_id", "log_conn_id") and isinstance(value, str):
                yield value
            yield from _conn_ids(value)


class Submission:
    """
    One ``spark-submit`` of a run.

    :param conn_id: Spark connection; its ``deploy-mode`` says where the driver lives. In client mode it lives on the worker's machine, in a session of its own,
        and may outlive the task
    :param conf: settings for ``spark-submit``: visible in process lists
    :raises InvalidError: the connection is none of a cluster, or a setting holds a secret
    """

    def __init__(
        self, pipeline: Pipeline, *, run_key: str, drain: bool, conn_id: str, conf: Mapping[str, str] | None
    ) -> None:
        from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

        found = airflow_connection(conn_id)
        if found.conn_type != "spark" or not found.host:  # the hook would submit to YARN
            raise InvalidError(
                'run_in="submit" needs a connection of type spark with a host',
                conn_id=conn_id,
                conn_type=found.conn_type,
            )
        if secret := secret_settings(conf or {}):
            raise InvalidError(
                "settings hold secrets, and the command line of spark-submit is visible in process lists; nothing was submitted",
                given=secret,
                accepted="spark-defaults.conf of the Spark that submits, a credentials provider of Hadoop, or a secret of Kubernetes",
            )
        self._is_cluster = found.extra.get("deploy-mode") == "cluster"
        self._application = submit_app.__file__
        self._hook: Any = SparkSubmitHook(
            conn_id=conn_id,
            conf=dict(conf or {}),
            name=f"streamsem-{pipeline.name}",
            application_args=submit_app.arguments(pipeline, run_key=run_key, drain=drain),
        )
        self._failed: list[BaseException] = []

    def start(self, connections: Recorded) -> None:
        """
        Submit, and return while the driver works: in client mode after a few seconds, in cluster mode when the cluster has given it a name.

        :raises StageError: ``spark-submit`` failed meanwhile; the version stays open
        """
        thread: Any = Thread(target=self._submit, args=(connections.environment(),), name="spark-submit", daemon=True)
        thread.start()
        waited = 0.0
        while thread.is_alive() and waited < (_SUBMITTED_WITHIN_S if self._is_cluster else GRACE_S):
            if self._is_cluster and any(getattr(self._hook, name, None) for name in _NAMES_OF_DRIVERS):
                break
            thread.join(1)
            waited += 1
        self._refuse_failed()

    def end(self) -> None:
        """End ``spark-submit``, and with it a driver in client mode. What the driver has decided stays."""
        process = getattr(self._hook, "_submit_sp", None)
        if process is not None and process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)

    def wait(self, connections: Recorded) -> None:
        """
        Submit, and return when ``spark-submit`` has ended: in client mode that is when the driver has.

        :raises StageError: it failed; the version stays open
        """
        self._submit(connections.environment())
        self._refuse_failed()

    def _submit(self, environment: dict[str, str]) -> None:
        try:
            # A session of its own: what ends the task's process group does not end the driver.
            self._hook.submit(self._application, start_new_session=True, env={**os.environ, **environment})
        except Exception as error:
            self._failed.append(error)

    def _refuse_failed(self) -> None:
        if self._failed:
            raise StageError("spark-submit failed; the version stays open") from self._failed[0]


def refuse_unnamed_transform(pipeline: Pipeline, task_id: str) -> None:
    """
    A driver elsewhere imports its transform by name.

    :raises InvalidError: it has none that can be imported
    """
    name = pipeline.transform_name
    if "<" in name or getattr(pipeline.transform, "__module__", "").startswith("unusual_prefix"):
        raise InvalidError(
            'run_in="submit" needs a transform that the driver can import by its name',
            task=task_id,
            given=name,
            accepted="package.module:function",
        )
