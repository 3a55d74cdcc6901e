"""Resolves the ``log_conn_id`` of a pipeline to the URL of its log and the access to S3."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from airflow_provider_streamsem.connections import Connection, connection
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import NAME, Pipeline
from airflow_provider_streamsem.stores import aws, s3
from airflow_provider_streamsem.stores.contract import split_url

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def located(pipeline: Pipeline) -> Iterator[Pipeline]:
    """
    Yield the pipeline with its log's URL in place of ``log_conn_id``. Within the block, all access to S3 uses the settings of that connection.

    A stored spec contains the URL and never the connection id, because other deployments may read the log.
    """
    if pipeline.log_conn_id is None:
        yield pipeline
        return
    conn = connection(pipeline.log_conn_id)
    with s3.use_s3_access(access(conn)):
        yield pipeline.replace(log=f"{root(conn)}/{pipeline.name}", log_conn_id=None)


def with_log_location(function: F) -> F:
    """Decorate a function whose first argument is a pipeline. The function receives the pipeline that :func:`located` yields, and runs inside that block."""

    @wraps(function)
    def wrapper(pipeline: Pipeline, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(pipeline, Pipeline):
            raise InvalidError(
                f"the first argument of {function.__name__} must be a Pipeline", given=type(pipeline).__name__
            )
        with located(pipeline) as located_pipeline:
            return function(located_pipeline, *args, **kwargs)

    return cast(F, wrapper)


def root(conn: Connection) -> str:
    """Return the root location of the logs of a ``streamsem`` connection. The log of a pipeline is at ``<root>/<name>``."""
    if conn.conn_type != "streamsem":
        raise InvalidError(
            "log_conn_id must name a connection of type streamsem", conn_id=conn.conn_id, conn_type=conn.conn_type
        )
    if not conn.host:
        raise InvalidError(
            "a streamsem connection must have the root location of its logs as host", conn_id=conn.conn_id
        )
    return conn.host.rstrip("/")


def is_log_of(directory: str, log: str) -> bool:
    """
    Return whether a location is that of a pipeline's log below a root: the root, ``/``, and the name of a pipeline.

    A name has no dots, slashes and percent signs, so no spelling of another location passes. A local log that is a symbolic link does not pass either.
    """
    parent, _, name = log.rpartition("/")
    if parent != directory or not re.fullmatch(NAME, name):
        return False
    scheme, path = split_url(log)
    return scheme != "file" or os.path.dirname(os.path.realpath(path)) == os.path.realpath(os.path.dirname(path))


def access(conn: Connection) -> s3.S3Access:
    """
    Return the S3 access of a ``streamsem`` connection, from ``endpoint_url``, ``region_name`` and ``aws_conn_id`` in its extra.

    Values that the connection and its AWS connection do not set are ``None``. boto3's default chain supplies these.
    """
    aws_conn_id = conn.extra.get("aws_conn_id")
    aws_access = aws.access_of(str(aws_conn_id), service="s3") if aws_conn_id else s3.S3Access()
    own = {name: aws.text_or_none(conn.extra, name) for name in ("endpoint_url", "region_name")}
    return dataclasses.replace(aws_access, **{name: value for name, value in own.items() if value is not None})
