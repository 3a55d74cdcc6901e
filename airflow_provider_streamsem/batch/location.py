"""Where a pipeline's log lies, and how S3 is reached there, where a connection says it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from airflow_provider_streamsem.batch.pipeline import Pipeline
from airflow_provider_streamsem.connections import Connection, connection
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.stores import s3

F = TypeVar("F", bound=Callable[..., Any])
_NEEDS_A_PROVIDER = ("role_arn", "assume_role_method", "credential_source", "config_kwargs")


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

    The AWS connection is read as Airflow's Amazon provider writes it: login and password, or ``aws_session_token``, ``profile_name``, ``region_name``,
    ``endpoint_url`` in its extra. What it leaves open is left to boto3's default chain.
    """
    given: dict[str, str | None] = {}
    aws_conn_id = found.extra.get("aws_conn_id")
    if aws_conn_id:
        aws = connection(str(aws_conn_id))
        if aws.conn_type != "aws":
            raise InvalidError(
                "aws_conn_id must name a connection of type aws", conn_id=aws.conn_id, given=aws.conn_type
            )
        refused = [name for name in _NEEDS_A_PROVIDER if aws.extra.get(name)]
        if refused:
            raise InvalidError(
                "an AWS connection that assumes a role cannot be used for a log",
                conn_id=aws.conn_id,
                given=refused,
                accepted="login and password, or profile_name: a profile of the worker's AWS configuration may assume the role",
            )
        given = {
            "access_key_id": aws.login or _word(aws.extra, "aws_access_key_id"),
            "secret_access_key": aws.password or _word(aws.extra, "aws_secret_access_key"),
            "session_token": _word(aws.extra, "aws_session_token"),
            "profile_name": _word(aws.extra, "profile_name"),
            "region_name": _word(aws.extra, "region_name"),
            "endpoint_url": _word(_services(aws.extra), "endpoint_url") or _word(aws.extra, "endpoint_url"),
        }
    for name in ("endpoint_url", "region_name"):
        given[name] = _word(found.extra, name) or given.get(name)
    return s3.S3Access(**given)


def _services(extra: Mapping[str, object]) -> Mapping[str, object]:
    config = extra.get("service_config")
    service = config.get("s3") if isinstance(config, Mapping) else None
    return service if isinstance(service, Mapping) else {}


def _word(extra: Mapping[str, object], name: str) -> str | None:
    return str(extra[name]) if extra.get(name) else None
