"""Headers and credentials of a connection."""

from __future__ import annotations

import base64
import json
import logging
import traceback
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem.connectors.http.sink import HttpSink
from airflow_provider_streamsem.errors import (
    InvalidError,
    PublishError,
    UnavailableError,
)
from tests.connectors.batches import schema_of
from tests.connectors.http.endpoints import Recorder
from tests.connectors.http.pushing_fixture import (
    new_fixture,
    pushing,
)


def test_secrets_come_from_the_connection_and_are_never_logged_or_stored(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    secrets = ("pass-wörd", "t0ken-of-the-header")
    text = {
        "conn_type": "http", "host": "127.0.0.1", "port": recorder.port, "login": "u", "password": secrets[0],
        "extra": {"X-Token": secrets[1], "verify": False},
    }  # fmt: skip
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps(text))
    fixture = new_fixture(tmp_path)
    pipeline = pushing(fixture, recorder, url=None, conn_id="hook", endpoint="/v1/metrics?source=x", method="PUT")
    recorder.reply_to = lambda call: 422
    with pytest.raises(PublishError) as refused:
        fixture.run("a", pipeline=pipeline)
    recorder.reply_to = lambda call: "lost"
    with pytest.raises(UnavailableError) as lost:
        fixture.run("a", pipeline=pipeline)
    recorder.reply_to = lambda call: 200
    fixture.run("a", pipeline=pipeline)
    call = recorder.calls[-1]
    basic = base64.b64encode(f"u:{secrets[0]}".encode()).decode()
    assert (call.method, call.path) == ("PUT", "/v1/metrics?source=x")
    assert (call.headers["authorization"], call.headers["x-token"]) == (f"Basic {basic}", secrets[1])
    assert call.headers["content-type"] == "application/json"
    assert "verify" not in call.headers
    actual = "".join("".join(traceback.format_exception(raised.value)) for raised in (refused, lost))
    stored = "".join((fixture.store.read(stat.key) or b"").decode() for stat in fixture.store.list(""))
    for secret in (*secrets, basic):
        assert secret not in actual + stored + caplog.text + repr(pipeline)


@pytest.mark.parametrize(
    ("connection_fields", "is_warned"),
    [
        ({"host": "api.example.com", "password": "s3cret"}, True),
        ({"host": "http://api.example.com", "extra": {"Authorization": "Bearer s3cret"}}, True),
        ({"host": "10.0.0.5", "login": "u", "password": "s3cret"}, True),
        ({"host": "api.example.com"}, False),
        ({"host": "api.example.com", "extra": {"Accept": "text/plain", "verify": False}}, False),
        ({"host": "api.example.com", "schema": "https", "password": "s3cret"}, False),
        ({"host": "https://api.example.com", "password": "s3cret"}, False),
        ({"host": "localhost", "password": "s3cret"}, False),
        ({"host": "127.9.9.9", "password": "s3cret"}, False),
        ({"host": "http://[::1]:8080", "password": "s3cret"}, False),
        ({"host": "127.0.0.1.example.com", "password": "s3cret"}, True),
    ],
)
def test_credentials_sent_unencrypted_to_another_machine_cause_a_warning(
    connection_fields: dict[str, Any],
    is_warned: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "http", **connection_fields}))
    sink = HttpSink("/staged", conn_id="hook")
    sink.resolve_schema(schema_of(a="string"))
    assert [record.getMessage() for record in caplog.records] == sink.warnings()
    assert bool(sink.warnings()) == is_warned
    assert all("without encryption" in warning and "s3cret" not in warning for warning in sink.warnings())


def test_credentials_from_netrc_are_not_sent(
    tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password else")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    fixture = new_fixture(tmp_path / "w")
    fixture.run("a", pipeline=pushing(fixture, recorder))
    assert all("authorization" not in call.headers for call in recorder.calls)


@pytest.mark.parametrize(
    "extra", [{"X-Token": "se\r\ncret"}, {"X Token": "secret"}, {"X-Token": 5}, {"X-Token": "sécret"}, {"idempotency-key": "secret"}]
)  # fmt: skip
def test_invalid_header_is_refused_before_the_commit_and_not_quoted(
    extra: dict[str, Any], tmp_path: Path, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_HOOK", json.dumps({"conn_type": "http", "host": "h", "extra": extra}))
    fixture = new_fixture(tmp_path)
    with pytest.raises(InvalidError, match="conn_id='hook'") as refused:
        fixture.run("a", pipeline=pushing(fixture, recorder, url=None, conn_id="hook"))
    assert "cret" not in str(refused.value)
    assert fixture.opened().log.outcome(0) is None
