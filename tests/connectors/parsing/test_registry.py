"""The client of a schema registry, against an HTTP server that requires a password."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from airflow_provider_streamsem import KafkaSource
from airflow_provider_streamsem.connectors.parsing.decoders import Avro
from airflow_provider_streamsem.connectors.parsing.registry import Registry, registry_of, versions_of, warnings
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, StreamsemError, UnavailableError

SCHEMA = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}'
PASSWORD = "s3cret-word"
AUTHORIZATION = "Basic " + base64.b64encode(f"reader:{PASSWORD}".encode()).decode()


class Server(BaseHTTPRequestHandler):
    authorizations: ClassVar[list[str | None]] = []
    redirects_to: ClassVar[str] = ""
    status: ClassVar[int] = 200
    bodies: ClassVar[dict[str, bytes]] = {}

    def do_GET(self) -> None:
        self.authorizations.append(self.headers.get("Authorization"))
        if self.redirects_to:
            self.send_response(302)
            self.send_header("Location", self.redirects_to + self.path)
            self.end_headers()
            return
        is_known = self.authorizations[-1] == AUTHORIZATION
        self.send_response(self.status if is_known else 401)
        self.end_headers()
        if is_known:
            body: Any = [1] if self.path.endswith("/versions") else {"id": 7, "schema": SCHEMA}
            self.wfile.write(self.bodies.get(self.path.rpartition("/")[2], json.dumps(body).encode()))

    def log_message(self, format: str, *args: Any) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Server.authorizations, Server.redirects_to, Server.status, Server.bodies = [], "", 200, {}
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_login_and_password_of_the_connection_are_sent(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    port = address.rpartition(":")[2]
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMAS", f"http://reader:{PASSWORD}@127.0.0.1:{port}")
    registry = registry_of(Avro(SCHEMA, registry_conn_id="schemas"))
    assert registry is not None
    (version,) = versions_of(registry, ["orders-value"])
    assert (version.subject, version.number, version.id, version.schema) == ("orders-value", 1, 7, SCHEMA)
    assert {*Server.authorizations} == {AUTHORIZATION}
    assert PASSWORD not in repr(registry)


def test_refused_credentials_fail_without_a_retry_and_are_not_shown(address: str) -> None:
    registry = Registry(address, "Basic " + base64.b64encode(b"reader:wrong-word").decode())
    with pytest.raises(StoreRefusedError, match="schema registry refused a request") as refused:
        versions_of(registry, ["orders-value"])
    assert not refused.value.retryable
    assert "registry_conn_id" in str(refused.value)
    assert "wrong-word" not in str(refused.value)


def test_server_error_of_the_registry_is_retryable(address: str) -> None:
    Server.status = 503
    with pytest.raises(UnavailableError, match="did not report the result"):
        versions_of(Registry(address, AUTHORIZATION), ["orders-value"])


@pytest.mark.parametrize("name", ["versions", "1"])
@pytest.mark.parametrize(
    "body",
    [b"", b"[" * 100_000, b"\xff", b"1", b'"a"', b"[[1]]", b'["1"]', b'{"a": 1}', b'{"id": [], "schema": "{}"}', b'{"id": 7, "schema": 1}',
     json.dumps({"id": 7, "schema": "[" * 100_000}).encode()],
)  # fmt: skip
def test_response_that_is_not_valid_is_one_clear_error(address: str, name: str, body: bytes) -> None:
    Server.bodies = {name: body}
    with pytest.raises(UnavailableError, match="did not report the result"):
        versions_of(Registry(address, AUTHORIZATION), ["orders-value"])


def test_credentials_are_not_sent_to_the_target_of_a_redirect(address: str) -> None:
    other = ThreadingHTTPServer(("127.0.0.1", 0), type("Other", (Server,), {"authorizations": [], "redirects_to": ""}))
    threading.Thread(target=other.serve_forever, daemon=True).start()
    Server.redirects_to = f"http://127.0.0.1:{other.server_port}"
    try:
        with pytest.raises(StreamsemError):
            versions_of(Registry(address, AUTHORIZATION), ["orders-value"])
        assert other.RequestHandlerClass.authorizations == [None]  # type: ignore[attr-defined]
    finally:
        other.shutdown()
        other.server_close()


def test_connection_without_a_host_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMAS", json.dumps({"conn_type": "http", "login": "reader"}))
    with pytest.raises(InvalidError, match="must have a host"):
        registry_of(Avro(SCHEMA, registry_conn_id="schemas"))


def test_connection_from_an_https_uri_is_encrypted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMAS", f"https://reader:{PASSWORD}@registry.example:8081")
    registry = registry_of(Avro(SCHEMA, registry_conn_id="schemas"))
    assert registry is not None
    assert registry.url == "https://registry.example:8081"


def test_extra_of_the_connection_is_refused_because_it_would_have_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"conn_type": "http", "host": "https://registry.example", "extra": {"Authorization": f"Bearer {PASSWORD}"}}
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMAS", json.dumps(given))
    with pytest.raises(InvalidError, match="extra of the connection") as refused:
        registry_of(Avro(SCHEMA, registry_conn_id="schemas"))
    assert PASSWORD not in str(refused.value)


def test_url_and_connection_exclude_each_other() -> None:
    with pytest.raises(InvalidError, match="exclude each other"):
        Avro(SCHEMA, registry="http://registry", registry_conn_id="schemas")


def test_unencrypted_credentials_are_a_warning_of_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMAS", f"http://reader:{PASSWORD}@registry.example")
    decoder = Avro(SCHEMA, registry_conn_id="schemas")
    source = KafkaSource(topics=["orders"], bootstrap_servers="broker:9092", value=decoder)
    (warning,) = source.warnings()
    assert "schema registry: the credentials of connection schemas" in warning
    assert PASSWORD not in warning
    monkeypatch.setenv("AIRFLOW_CONN_SCHEMAS", f"http://reader:{PASSWORD}@registry.example/https")
    assert warnings(decoder) == []
