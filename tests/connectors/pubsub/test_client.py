"""A Pub/Sub subscription without a server: arguments, connections, errors of Google's client, and the number of waiting messages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError
from google.auth.transport.requests import Request
from google.rpc.error_details_pb2 import ErrorInfo

from airflow_provider_streamsem import Pipeline, PubSubQueue, QueueSource
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.pubsub import client as module
from airflow_provider_streamsem.connectors.pubsub.client import PubSubReceiver
from airflow_provider_streamsem.connectors.pubsub.credentials import credentials_of
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, UnavailableError
from airflow_provider_streamsem.pipeline.spec import pipeline as spec

PATH = "projects/shop-1/subscriptions/orders"


class Client:
    """A subscriber client that raises one error for every request, and records the requests."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.requests: list[dict[str, Any]] = []

    def _record(self, **given: Any) -> None:
        self.requests.append(given)
        if self.error is not None:
            raise self.error

    pull = acknowledge = modify_ack_deadline = _record


def receiver(error: Exception | None = None) -> PubSubReceiver:
    return PubSubReceiver(PubSubQueue(subscription=PATH), Client(error), AnonymousCredentials())


def refused(**reasons: str) -> exceptions.GoogleAPICallError:
    """Return the error of a subscription with exactly-once delivery: ack id → reason."""
    info = ErrorInfo(reason="ack", domain="pubsub", metadata=reasons)
    return exceptions.FailedPrecondition("s3cret text", error_info=info)


def test_acknowledgements_are_sent_in_batches_of_a_thousand() -> None:
    pubsub_receiver = receiver()
    pubsub_receiver.acknowledge([str(n) for n in range(2_500)])
    assert [len(request["ack_ids"]) for request in pubsub_receiver._client.requests] == [1_000, 1_000, 500]
    assert [id for request in pubsub_receiver._client.requests for id in request["ack_ids"]] == [
        str(n) for n in range(2_500)
    ]


def test_ack_ids_that_expired_on_an_exactly_once_subscription_are_skipped() -> None:
    pubsub_receiver = receiver(refused(a="PERMANENT_FAILURE_INVALID_ACK_ID"))
    pubsub_receiver.acknowledge(["a", "b"])
    pubsub_receiver._extend(["a"])
    assert [request["ack_ids"] for request in pubsub_receiver._client.requests] == [["a", "b"], ["a"]]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (refused(a="TRANSIENT_FAILURE_ACK", b="PERMANENT_FAILURE_INVALID_ACK_ID"), UnavailableError),
        (exceptions.NotFound("s3cret"), StoreRefusedError),
        (exceptions.PermissionDenied("s3cret"), StoreRefusedError),
        (exceptions.Unauthenticated("s3cret"), StoreRefusedError),
        (exceptions.InvalidArgument("s3cret"), StoreRefusedError),
        (exceptions.ServiceUnavailable("s3cret"), UnavailableError),
        (exceptions.ResourceExhausted("s3cret"), UnavailableError),
        (exceptions.InternalServerError("s3cret"), UnavailableError),
        (exceptions.DeadlineExceeded("s3cret"), UnavailableError),
        (exceptions.RetryError("s3cret", None), UnavailableError),
        (RefreshError("s3cret"), StoreRefusedError),
        (RefreshError("s3cret", retryable=True), UnavailableError),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else value.__name__,
)
def test_errors_of_an_acknowledgement_are_translated_without_their_text(
    error: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as caught:
        receiver(error).acknowledge(["a", "b"])
    assert "s3cret" not in str(caught.value)


def test_pull_that_times_out_returns_no_messages() -> None:
    assert receiver(exceptions.DeadlineExceeded("none")).receive(10) == []


@contextmanager
def monitoring(response: Any, status: int = 200) -> Iterator[list[str]]:
    """Serve one response of Cloud Monitoring. Yields the paths that were requested."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            body = json.dumps(response).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever)
    thread.start()
    before, module._MONITORING = module._MONITORING, f"http://127.0.0.1:{server.server_port}"
    try:
        yield paths
    finally:
        module._MONITORING = before
        server.shutdown()
        thread.join()
        server.server_close()


def test_number_of_waiting_messages_is_the_newest_one_of_cloud_monitoring() -> None:
    points = [{"value": {"int64Value": "7"}}, {"value": {"int64Value": "9"}}]
    with monitoring({"timeSeries": [{"points": points}]}) as paths:
        assert receiver().waiting() == 7
    url = urlsplit(paths[0])
    assert url.path == "/v3/projects/shop-1/timeSeries"
    assert 'subscription_id="orders"' in parse_qs(url.query)["filter"][0]


@pytest.mark.parametrize(
    ("response", "status", "expected"),
    [
        ({}, 200, UnavailableError),
        ({}, 500, UnavailableError),
        ({}, 403, StoreRefusedError),
        ([], 200, UnavailableError),
    ],
)
def test_missing_number_of_waiting_messages_is_an_error_and_not_zero(
    response: Any, status: int, expected: type[Exception]
) -> None:
    with monitoring(response, status), pytest.raises(expected):
        receiver().waiting()


@pytest.mark.parametrize(
    "given",
    [
        {"subscription": "orders"},
        {"subscription": "projects/p/topics/orders"},
        {"subscription": PATH, "conn_id": ""},
        {"subscription": PATH, "endpoint": "https://h"},
        {"subscription": PATH, "endpoint": "user@h"},
        {"subscription": PATH, "ack_deadline_s": 9},
        {"subscription": PATH, "ack_deadline_s": 601},
        {"subscription": PATH, "wait_s": 0},
    ],
    ids=str,
)
def test_invalid_argument_is_refused_by_name(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=[*given][-1]):
        PubSubQueue(**given)


def test_spec_names_the_subscription_and_is_read_back() -> None:
    queue = {"type": "pubsub", "subscription": PATH, "conn_id": "gcp"}
    source = QueueSource(queue=queue, landing="/landing", schema="id long")  # type: ignore[arg-type]
    pipeline = Pipeline(name="p", log="memory://p", source=source, sinks={"out": FilesSink(path="/out")})
    assert spec.from_json(json.loads(json.dumps(pipeline.to_json()))).source == source
    assert source.immutable_config()["queue"] == {"type": "pubsub", "subscription": PATH}  # type: ignore[index, call-overload]
    assert source.lineage({})[0] == ("pubsub", "subscription:shop-1:orders")
    assert source.extra == "pubsub"
    with pytest.raises(InvalidError, match="subscription"):
        QueueSource(queue={"type": "pubsub"}, landing="/landing", schema="id long")  # type: ignore[arg-type]


def key(**changes: str) -> dict[str, str]:
    """Return the key of a service account that does not exist."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account", "client_email": "a@b", "token_uri": "http://127.0.0.1:9/token", "private_key": private.decode(), **changes
    }  # fmt: skip


@pytest.mark.parametrize("prefix", ["", "extra__google_cloud_platform__"])
def test_key_of_a_service_account_comes_from_the_connection_or_from_a_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, prefix: str
) -> None:
    service_account = key()
    (tmp_path / "key.json").write_text(json.dumps(service_account))
    for extra in (
        {"keyfile_dict": json.dumps(service_account)},
        {"keyfile_dict": service_account},
        {"key_path": str(tmp_path / "key.json")},
    ):
        conn = {"conn_type": "google_cloud_platform", "extra": {f"{prefix}{name}": v for name, v in extra.items()}}
        monkeypatch.setenv("AIRFLOW_CONN_GCP", json.dumps(conn))
        assert credentials_of("gcp").service_account_email == "a@b"
    credentials = credentials_of("gcp")
    with pytest.raises(UnavailableError, match="authentication"), module._translated(PATH):
        credentials.refresh(Request())


@pytest.mark.parametrize(
    ("conn", "message"),
    [
        ({"conn_type": "aws"}, "google_cloud_platform"),
        ({"conn_type": "google_cloud_platform", "extra": {"key_secret_name": "s3cret"}}, "key_secret_name"),
        ({"conn_type": "google_cloud_platform", "extra": {"key_path": "/not/there"}}, "cannot be read"),
        ({"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": '{"private_key": "s3cret"}'}}, "key"),
        ({"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": "s3cret"}}, "key"),
    ],
    ids=["type", "secret-manager", "no-file", "no-key", "no-json"],
)
def test_connection_that_cannot_be_used_is_refused(
    monkeypatch: pytest.MonkeyPatch, conn: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GCP", json.dumps(conn))
    with pytest.raises(InvalidError, match=message) as caught:
        credentials_of("gcp")
    assert "s3cret" not in str(caught.value)


def test_process_without_credentials_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("GOOGLE_APPLICATION_CREDENTIALS", "PUBSUB_EMULATOR_HOST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("NO_GCE_CHECK", "true")
    queue = PubSubQueue(subscription=PATH)
    with pytest.raises(StoreRefusedError, match="lacks credentials"), queue.connect():
        pass
