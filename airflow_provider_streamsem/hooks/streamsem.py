"""The hook of connection type ``streamsem``."""

from __future__ import annotations

from typing import Any

from airflow.sdk.bases.hook import BaseHook

from airflow_provider_streamsem.commitlog import doctor
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.connections import use_resolver
from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.hooks.connections import airflow_connection
from airflow_provider_streamsem.pipeline.spec import location
from airflow_provider_streamsem.stores import s3


class StreamsemHook(BaseHook):  # type: ignore[misc]
    """
    Hook of a connection that names the root location of a deployment's commit logs and the access to S3.

    Host: the root location, ``s3://bucket/prefix`` or an absolute path. The log of pipeline ``orders`` is stored at ``<root>/orders``. Extra:
    ``endpoint_url``, ``region_name``, and ``aws_conn_id``, an AWS connection as defined by Airflow's Amazon provider. boto3's default chain supplies all
    values that the connection does not set.

    :param log_conn_id: id of the connection
    """

    conn_name_attr = "log_conn_id"
    default_conn_name = "streamsem_default"
    conn_type = "streamsem"
    hook_name = "Streamsem"

    def __init__(self, log_conn_id: str = default_conn_name, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.log_conn_id = log_conn_id

    def examine(self) -> doctor.DoctorReport:
        """
        Check whether the store has the properties that a log requires. Creates probe objects under
        ``<root>/_connection_test``, deletes them if it may, and stores a report there.

        :raises InvalidError: the connection is not valid
        :raises StoreRefusedError: this process has no permission to write, read or list under ``<root>/_connection_test``
        :raises UnavailableError: the store did not report the result of a request
        """
        with use_resolver(airflow_connection):
            connection = airflow_connection(self.log_conn_id)
            with s3.use_s3_access(location.access(connection)):
                return doctor.examine(commit_log_at(f"{location.root(connection)}/_connection_test"))

    def test_connection(self) -> tuple[bool, str]:
        """
        Run :meth:`examine` for Airflow's *Test connection* button.

        :returns: whether all probes passed, and a message for the user
        """
        try:
            report = self.examine()
        except StreamsemError as error:
            return False, str(error)
        failed = [f"{check.name}: {check.observed}" for check in report.checks if not check.passed]
        if failed:
            return (
                False,
                f"the store does not have the properties that a log requires, such as create-if-absent: {'; '.join(failed)}",
            )
        return True, f"{report.location} supports create-if-absent; {len(report.checks)} probes passed"
