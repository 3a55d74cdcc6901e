"""Where a pipeline's log lies, and how S3 is reached there, where a connection says it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.connections import Connection, connection
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.stores import aws, s3

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def located(pipeline: Pipeline) -> Iterator[Pipeline]:
    """
    The pipeline with its log's URL in place of ``log_conn_id``; while the block runs, S3 is reached as that connection says.

    What is stored in a log holds the URL, never the connection's id: other deployments read it, too.

    :raises InvalidError: no such connection, not of type ``streamsem``, no root, or credentials of a kind that cannot be used
    """
    if pipeline.log_conn_id is None:
        yield pipeline
        return
    found = connection(pipeline.log_conn_id)
    with s3.reached_by(access(found)):
        yield pipeline.replace(log=f"{root(found)}/{pipeline.name}", log_conn_id=None)


def on_its_log(function: F) -> F:
    """Call a function, whose first argument is a pipeline, with the pipeline :func:`located`."""

    @wraps(function)
    def called(pipeline: Pipeline, *args: Any, **kwargs: Any) -> Any:
        if not isinstance(pipeline, Pipeline):
            raise InvalidError(f"{function.__name__} takes a Pipeline", given=type(pipeline).__name__)
        with located(pipeline) as there:
            return function(there, *args, **kwargs)

    return cast(F, called)


def root(found: Connection) -> str:
    """The place under which a connection's logs lie, each under its pipeline's name."""
    if found.conn_type != "streamsem":
        raise InvalidError(
            "a log's connection must be of type streamsem", conn_id=found.conn_id, conn_type=found.conn_type
        )
    if not found.host:
        raise InvalidError("a streamsem connection must have the root of its logs as host", conn_id=found.conn_id)
    return found.host.rstrip("/")


def access(found: Connection) -> s3.S3Access:
    """
    How a ``streamsem`` connection says that S3 is reached: ``endpoint_url``, ``region_name`` and ``aws_conn_id`` in its extra.

    What they leave open is left to boto3's default chain.
    """
    aws_conn_id = found.extra.get("aws_conn_id")
    given = aws.access_of(str(aws_conn_id), service="s3") if aws_conn_id else s3.S3Access()
    here = {name: aws.word(found.extra, name) for name in ("endpoint_url", "region_name")}
    return dataclasses.replace(given, **{name: value for name, value in here.items() if value is not None})
