"""
A moto S3 server in this process, on the loopback interface, behind a lock.

moto checks whether a key exists, and then writes it without a lock, so two concurrent creates can both succeed. In S3 they cannot. The lock makes each request
atomic. So tests with this server prove nothing about the concurrency of a real server, which ``streamsem doctor`` tests.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Lock, Thread
from typing import Any

from airflow_provider_streamsem.errors import InvalidError


@contextmanager
def s3_server(*, bucket: str, port: int = 0) -> Iterator[str]:
    """
    Run an S3 server with one bucket within the block, and yield its endpoint.

    :param bucket: name of the bucket
    :param port: TCP port; 0 selects a free one
    :raises InvalidError: moto is not installed
    """
    try:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server
    except ImportError as error:
        raise InvalidError("moto's server is not installed").advising(
            "run `pip install 'airflow-provider-streamsem[testing]'`."
        ) from error

    class Quiet(WSGIRequestHandler):  # type: ignore[misc]
        def log(self, type: str, message: str, *args: Any) -> None:
            return

    application = one_at_a_time(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", port, application, threaded=True, request_handler=Quiet)
    thread = Thread(target=server.serve_forever, name="s3-server", daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    try:
        make_bucket(endpoint, bucket)
        yield endpoint
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def make_bucket(endpoint: str, bucket: str) -> None:
    """Create a bucket on this server if it does not exist. For an existing bucket, moto returns success, as S3 does in us-east-1."""
    import boto3

    boto3.client("s3", endpoint_url=endpoint, **credentials()).create_bucket(Bucket=bucket)


def credentials() -> dict[str, str]:
    """Return credentials for this server, which accepts any."""
    return {"aws_access_key_id": "testing", "aws_secret_access_key": "testing", "region_name": "us-east-1"}


def environment(endpoint: str) -> dict[str, str]:
    """Return the environment variables with which boto3 accesses the server."""
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": ",".join(filter(None, [os.environ.get("NO_PROXY"), "127.0.0.1"])),
    }


def one_at_a_time(application: Any) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
    """Return a WSGI application that serves one request at a time, including the response body."""
    lock = Lock()

    def locked(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        with lock:
            return [b"".join(application(environ, start_response))]

    return locked
