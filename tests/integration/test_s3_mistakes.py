"""Ordinary mistakes with S3, made against real servers, in this process and in Spark: each error names the cause, and never a secret."""

from __future__ import annotations

import json
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer
from pyspark.sql import SparkSession

from airflow_provider_streamsem import FilesSink, FilesSource, Pipeline, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog, RetryPolicy
from airflow_provider_streamsem.errors import (
    InvalidError,
    StageError,
    StoreRefusedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.stores.s3 import S3Access, use_s3_access
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.integration.parts.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from tests.integration.parts.server import free_port, running

pytestmark = pytest.mark.integration
WRONG = "hunter2"


@dataclass(frozen=True)
class Endpoints:
    """
    Servers with the buckets ``lake`` and ``arrivals``, and endpoints at which something else is.

    :param s3: a server that checks signatures and permissions
    :param moto: a server without these buckets
    :param web: a web server that is not an S3 server
    :param nothing: nothing listens there
    """

    s3: str
    moto: str
    web: str
    nothing: str

    def of(self, template: str) -> str:
        """Return ``{s3}`` and the like in a template as addresses without a scheme."""
        return template.format(**{name: url.removeprefix("http://") for name, url in vars(self).items()})


class _Web(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    do_HEAD = do_GET

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    server = S3Server(tmp_path_factory.mktemp("mistakes"), has_accounts=True)
    web = ThreadingHTTPServer(("127.0.0.1", 0), _Web)
    Thread(target=web.serve_forever, daemon=True).start()
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    with ExitStack() as stack:
        stack.enter_context(running(server))
        stack.callback(web.server_close)
        stack.callback(web.shutdown)
        moto.start()
        stack.callback(moto.stop)
        root = boto3.session.Session(ACCESS_KEY, SECRET_KEY, region_name="us-east-1").client("s3", endpoint_url=server.endpoint)  # fmt: skip
        server.create_account("limited", "secret-of-limited")
        for bucket in ("lake", "arrivals"):
            root.create_bucket(Bucket=bucket)
            allowed = {"Effect": "Allow", "Principal": {"AWS": ["limited"]}, "Action": ["s3:ListBucket"], "Resource": [f"arn:aws:s3:::{bucket}"]}  # fmt: skip
            root.put_bucket_policy(Bucket=bucket, Policy=json.dumps({"Version": "2012-10-17", "Statement": [allowed]}))
        root.put_object(Bucket="arrivals", Key="x/a.json", Body=b'{"id": 1}\n')
        yield Endpoints(
            s3=server.endpoint,
            moto="http://{}:{}".format(*moto.get_host_and_port()),
            web=f"http://127.0.0.1:{web.server_port}",
            nothing=f"http://127.0.0.1:{free_port()}",
        )


def access(endpoints: Endpoints, changes: dict[str, str | None]) -> S3Access:
    right = {"endpoint_url": endpoints.s3, "region_name": "us-east-1", "access_key_id": ACCESS_KEY, "secret_access_key": SECRET_KEY}  # fmt: skip
    wrong = {name: None if value is None else endpoints.of(value) for name, value in changes.items()}
    return S3Access(**{**right, **wrong})


def check_secrets(error: StreamsemError) -> None:
    assert SECRET_KEY not in str(error)
    assert WRONG not in "".join(traceback.format_exception(error))


IN_THIS_PROCESS: dict[str, tuple[dict[str, str | None], str, type[StreamsemError], str]] = {
    "secret key": ({"secret_access_key": WRONG}, "lake", StoreRefusedError, "the secret access key does not fit"),
    "access key": ({"access_key_id": "nobody"}, "lake", StoreRefusedError, "S3 does not know the access key"),
    "session token": ({"session_token": WRONG}, "lake", StreamsemError, "session token"),
    "bucket": ({}, "absent", StoreRefusedError, "the S3 bucket does not exist"),
    "bucket of another server": ({"endpoint_url": "http://{moto}"}, "lake", StoreRefusedError, "the S3 bucket does not exist"),
    "permission": ({"access_key_id": "limited", "secret_access_key": "secret-of-limited"}, "lake", StoreRefusedError, "S3 denies the access key"),
    "port": ({"endpoint_url": "http://{nothing}"}, "lake", UnavailableError, "endpoint='http://127.0.0.1"),
    "host": ({"endpoint_url": "http://no.such.host.invalid"}, "lake", UnavailableError, "no.such.host.invalid"),
    "https without TLS": ({"endpoint_url": "https://{s3}"}, "lake", StoreRefusedError, "does not speak TLS"),
    "no scheme": ({"endpoint_url": "{s3}"}, "lake", InvalidError, "endpoint='127.0.0.1"),
    "scheme": ({"endpoint_url": "s3://{s3}"}, "lake", InvalidError, "endpoint='s3://127.0.0.1"),
    "web server": ({"endpoint_url": "http://{web}"}, "lake", StoreRefusedError, "without an error code of S3"),
    "region": ({"region_name": "eu west"}, "lake", InvalidError, "region='eu west'"),
    "profile": ({"profile_name": "absent", "access_key_id": None, "secret_access_key": None}, "lake", InvalidError, "profile='absent'"),
}  # fmt: skip


def write_log(location: str) -> None:
    log = CommitLog(open_store(location), clock=ManualClock(), retry_policy=RetryPolicy(tries=2))
    log.read("pipeline.json")
    log.create("pipeline.json", b"{}")


def list_source(location: str) -> None:
    FilesSource(path=location, format="json", schema="id long").open(CommitLog(MemoryStore()), None).poll(None)


@pytest.mark.parametrize(
    ("use", "mistake"),
    [(use, mistake) for use in (write_log, list_source) for mistake in IN_THIS_PROCESS if (use, mistake) != (list_source, "permission")],
)  # fmt: skip
def test_mistake_with_s3_is_named_and_retried_only_if_that_can_help(
    endpoints: Endpoints, use: Callable[[str], None], mistake: str
) -> None:
    changes, bucket, kind, text = IN_THIS_PROCESS[mistake]
    with use_s3_access(access(endpoints, changes)), pytest.raises(StreamsemError) as failed:
        use(f"s3://{bucket}/x")
    error = failed.value
    assert isinstance(error, kind)
    assert text in str(error)
    check_secrets(error)


SIMPLE = "org.apache.hadoop.fs.s3a.{}AWSCredentialsProvider".format
IN_SPARK: dict[str, tuple[dict[str, str], type[StreamsemError], str]] = {
    "secret key": ({"access.key": ACCESS_KEY, "secret.key": WRONG}, StoreRefusedError, "does not accept its credentials"),
    "access key": ({"access.key": "nobody", "secret.key": WRONG}, StoreRefusedError, "does not accept its credentials"),
    "session token": ({"access.key": ACCESS_KEY, "secret.key": SECRET_KEY, "session.token": WRONG}, StageError, "session token"),
    "no credentials": ({"aws.credentials.provider": SIMPLE("Temporary")}, StoreRefusedError, "Spark has no credentials"),
    "class of the provider": ({"aws.credentials.provider": "org.example.Absent"}, InvalidError, "missing='org.example.Absent'"),
    "bucket of another server": ({"endpoint": "http://{moto}"}, StoreRefusedError, "does not exist at the endpoint"),
    "permission": ({"access.key": "limited", "secret.key": "secret-of-limited"}, StoreRefusedError, "S3 denies Spark access"),
    "port": ({"endpoint": "http://{nothing}"}, StageError, "server='127.0.0.1:"),
    "host": ({"endpoint": "http://no.such.host.invalid"}, StageError, "server='no.such.host.invalid'"),
    "https without TLS": ({"endpoint": "https://{s3}"}, StoreRefusedError, "does not speak TLS"),
    "no scheme": ({"endpoint": "{s3}"}, StoreRefusedError, "does not speak TLS"),
    "scheme": ({"endpoint": "s3://{s3}"}, StoreRefusedError, "not that of an S3 server"),
    "web server": ({"endpoint": "http://{web}"}, StreamsemError, "fs.s3a.endpoint"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", IN_SPARK)
@pytest.mark.parametrize("of", ["source", "sink"])
def test_mistake_with_s3_in_spark_is_named_and_retried_only_if_that_can_help(
    endpoints: Endpoints, spark: SparkSession, tmp_path: Path, mistake: str, of: str
) -> None:
    changes, kind, text = IN_SPARK[mistake]
    bucket = "arrivals" if of == "source" else "lake"
    settings = {"attempts.maximum": "1", "retry.limit": "1", **changes}
    inner: Any = spark
    close_all = inner._jvm.org.apache.hadoop.fs.FileSystem.closeAll  # Hadoop's cache ignores server and credentials
    pipeline = Pipeline(
        name="p", log=str(tmp_path / "log"), source=FilesSource(path="s3://arrivals/x", format="json", schema="id long"),
        sinks={"out": FilesSink(f"s3://lake/{uuid.uuid4().hex}")},
    )  # fmt: skip
    close_all()
    for name, value in settings.items():
        spark.conf.set(f"fs.s3a.bucket.{bucket}.{name}", endpoints.of(value))
    try:
        with use_s3_access(access(endpoints, {})), pytest.raises(StreamsemError) as failed:
            run_batch(pipeline, run_key="a")
    finally:
        for name in settings:
            spark.conf.unset(f"fs.s3a.bucket.{bucket}.{name}")
        close_all()
    error = failed.value
    assert isinstance(error, kind)
    assert text in str(error)
    assert "nothing became visible" in error.summary
    check_secrets(error)
