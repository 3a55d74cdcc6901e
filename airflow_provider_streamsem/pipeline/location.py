"""Resolves ``log_conn_id``: the location of a pipeline's log, and the access to S3."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from airflow_provider_streamsem.connections import Connection, connection
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec import Pipeline
from airflow_provider_streamsem.stores import aws, s3

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def located(pipeline: Pipeline) -> Iterator[Pipeline]:
    """
    Yield the pipeline with its log's URL in place of ``log_conn_id``. While the block runs, all access to S3 uses that connection's settings.

    Stored specs contain the URL, never the connection id, because other deployments may read the log.

    :raises InvalidError: the connection does not exist, is not of type ``streamsem``, has no root, or has credentials of an unsupported kind
    """
    if pipeline.log_conn_id is None:
        yield pipeline
        return
    found = connection(pipeline.log_conn_id)
    with s3.reached_by(access(found)):
        yield pipeline.replace(log=f"{root(found)}/{pipeline.name}", log_conn_id=None)


def on_its_log(function: F) -> F:
    """Decorate a function whose first argument is a pipeline: it is called with the pipeline that :func:`located` yields."""

    @wraps(function)
    def called(pipeline: Pipeline, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(pipeline, Pipeline):
            raise InvalidError(f"{function.__name__} takes a Pipeline", given=type(pipeline).__name__)
        with located(pipeline) as there:
            return function(there, *args, **kwargs)

    return cast(F, called)


def root(found: Connection) -> str:
    """The root location of a connection's logs. Each log is below it, under its pipeline's name."""
    if found.conn_type != "streamsem":
        raise InvalidError(
            "a log's connection must be of type streamsem", conn_id=found.conn_id, conn_type=found.conn_type
        )
    if not found.host:
        raise InvalidError("a streamsem connection must have the root of its logs as host", conn_id=found.conn_id)
    return found.host.rstrip("/")


def access(found: Connection) -> s3.S3Access:
    """
    The S3 access settings of a ``streamsem`` connection: ``endpoint_url``, ``region_name`` and ``aws_conn_id`` in its extra.

    boto3's default chain supplies every setting that they do not give.
    """
    aws_conn_id = found.extra.get("aws_conn_id")
    given = aws.access_of(str(aws_conn_id), service="s3") if aws_conn_id else s3.S3Access()
    here = {name: aws.word(found.extra, name) for name in ("endpoint_url", "region_name")}
    return dataclasses.replace(given, **{name: value for name, value in here.items() if value is not None})
