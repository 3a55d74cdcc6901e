"""Reads AWS credentials and endpoints from an Airflow connection of type ``aws``, whose format is that of Airflow's Amazon provider."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.stores.s3 import S3Access

_UNSUPPORTED_EXTRAS = ("role_arn", "assume_role_method", "credential_source", "config_kwargs")


def access_of(conn_id: str, *, service: str) -> S3Access:
    """
    Return the access to an AWS service that an Airflow connection configures.

    The function reads login, password, and ``aws_access_key_id``, ``aws_secret_access_key``, ``aws_session_token``, ``profile_name``, ``region_name`` and
    ``endpoint_url`` of the extra. Values that the connection does not set are ``None``.

    :param service: name of the service, such as ``s3`` or ``sqs``. Its ``endpoint_url`` in ``service_config`` takes precedence over the general one
    :raises InvalidError: the connection does not exist, is not of type ``aws``, or uses an unsupported kind of credentials
    """
    aws = connection(conn_id)
    if aws.conn_type != "aws":
        raise InvalidError("aws_conn_id must name a connection of type aws", conn_id=conn_id, given=aws.conn_type)
    unsupported = [name for name in _UNSUPPORTED_EXTRAS if aws.extra.get(name)]
    if unsupported:
        raise InvalidError(
            "the connection has settings of Airflow's Amazon provider that this package does not support",
            conn_id=conn_id,
            given=unsupported,
            accepted="login and password, or profile_name: a profile of the worker's AWS configuration may assume the role",
        )
    config = aws.extra.get("service_config")
    of_service = config.get(service) if isinstance(config, Mapping) else None
    return S3Access(
        access_key_id=aws.login or text_or_none(aws.extra, "aws_access_key_id"),
        secret_access_key=aws.password or text_or_none(aws.extra, "aws_secret_access_key"),
        session_token=text_or_none(aws.extra, "aws_session_token"),
        profile_name=text_or_none(aws.extra, "profile_name"),
        region_name=text_or_none(aws.extra, "region_name"),
        endpoint_url=(text_or_none(of_service, "endpoint_url") if isinstance(of_service, Mapping) else None)
        or text_or_none(aws.extra, "endpoint_url"),
    )


def text_or_none(extra: Mapping[str, object], name: str) -> str | None:
    """Return a setting as text, or ``None`` if it is absent or empty."""
    return str(extra[name]) if extra.get(name) else None
