"""The hook of connection type ``streamsem``."""

from __future__ import annotations

from typing import Any

from airflow.sdk.bases.hook import BaseHook

from airflow_provider_streamsem.batch import location
from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import open_commit_log
from airflow_provider_streamsem.connections import looked_up_by
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.hooks.lookup import airflow_connection
from airflow_provider_streamsem.stores import s3


class StreamsemHook(BaseHook):  # type: ignore[misc]
    """
    Where the logs of a deployment lie.

    Host: the root, ``s3://bucket/prefix`` or an absolute path; the log of pipeline ``orders`` lies at ``<root>/orders``. Extra: ``endpoint_url``,
    ``region_name``, and ``aws_conn_id``, an AWS connection as Airflow's Amazon provider has it. What is left open is left to boto3's default chain.

    :param log_conn_id: the connection's id
    """

    conn_name_attr = "log_conn_id"
    default_conn_name = "streamsem_default"
    conn_type = "streamsem"
    hook_name = "Streamsem"

    def __init__(self, log_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.log_conn_id = log_conn_id

    def examine(self) -> doctor.Report:
        """
        Probe below the root, at ``<root>/_connection_test``, whether the store keeps what a log rests on.

        :raises InvalidError: the connection is not acceptable
        :raises StoreRefusedError: the store lets this process not write, read or list there
        """
        with looked_up_by(airflow_connection):
            found = airflow_connection(self.log_conn_id)
            with s3.reached_by(location.access(found)):
                return doctor.examine(open_commit_log(f"{location.root(found)}/_connection_test"))

    def test_connection(self) -> tuple[bool, str]:
        """Airflow's *Test connection*: the doctor's verdict."""
        try:
            report = self.examine()
        except StreamsemError as error:
            return False, str(error)
        failed = [f"{check.name}: {check.seen}" for check in report.checks if not check.passed]
        if failed:
            return False, f"the store does not keep create-if-absent: {'; '.join(failed)}"
        return True, f"{report.place} keeps create-if-absent; {len(report.checks)} probes passed"
