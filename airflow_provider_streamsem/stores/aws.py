"""How AWS is reached where an Airflow connection of type ``aws`` says it, read as Airflow's Amazon provider writes it."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.stores.s3 import S3Access

_NEEDS_A_PROVIDER = ("role_arn", "assume_role_method", "credential_source", "config_kwargs")


def access_of(conn_id: str, *, service: str) -> S3Access:
    """
    Login and password, or ``aws_session_token``, ``profile_name``, ``region_name``, ``endpoint_url`` in the extra. What is left open is ``None``.

    :param service: whose ``endpoint_url`` in ``service_config`` goes before the one of all: ``s3``, ``sqs``
    :raises InvalidError: no such connection, not of type ``aws``, or credentials of a kind that cannot be used
    """
    aws = connection(conn_id)
    if aws.conn_type != "aws":
        raise InvalidError("aws_conn_id must name a connection of type aws", conn_id=conn_id, given=aws.conn_type)
    refused = [name for name in _NEEDS_A_PROVIDER if aws.extra.get(name)]
    if refused:
        raise InvalidError(
            "an AWS connection that assumes a role cannot be used here",
            conn_id=conn_id,
            given=refused,
            accepted="login and password, or profile_name: a profile of the worker's AWS configuration may assume the role",
        )
    config = aws.extra.get("service_config")
    of_service = config.get(service) if isinstance(config, Mapping) else None
    return S3Access(
        access_key_id=aws.login or word(aws.extra, "aws_access_key_id"),
        secret_access_key=aws.password or word(aws.extra, "aws_secret_access_key"),
        session_token=word(aws.extra, "aws_session_token"),
        profile_name=word(aws.extra, "profile_name"),
        region_name=word(aws.extra, "region_name"),
        endpoint_url=(word(of_service, "endpoint_url") if isinstance(of_service, Mapping) else None)
        or word(aws.extra, "endpoint_url"),
    )


def word(extra: Mapping[str, object], name: str) -> str | None:
    """A setting as text, or ``None`` where it is absent or empty."""
    return str(extra[name]) if extra.get(name) else None
