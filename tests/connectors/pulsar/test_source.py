"""Arguments, connections and pins of the Pulsar source, and what it plans if ledgers are missing. The ranges need a broker: tests/integration/test_pulsar.py."""

from __future__ import annotations

import io
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import requests

from airflow_provider_streamsem import Avro, FilesSink, Json, Limits, Pipeline, PulsarSource
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.pulsar.access import Access
from airflow_provider_streamsem.connectors.pulsar.admin import PulsarAdmin
from airflow_provider_streamsem.connectors.pulsar.entries import ENTRIES, LedgerPin, Ledgers
from airflow_provider_streamsem.connectors.pulsar.reading import RangeChangedError, _batch_size, messages
from airflow_provider_streamsem.connectors.source import SourceSlice
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError, SourceChangedError, UnavailableError
from airflow_provider_streamsem.pipeline.spec import pipeline as spec
from airflow_provider_streamsem.stores.memory import MemoryStore

URLS = {"service_url": "pulsar://h:6650", "admin_url": "http://h:8080"}
TOPIC = "persistent://public/default/orders"
PARTITION = f"{TOPIC}-partition-0"


def source(**arguments: Any) -> PulsarSource:
    return PulsarSource(**{"topic": "orders", **URLS, **arguments})


def at(ledger: int, entry: int) -> int:
    return ledger * ENTRIES + entry


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"topic": "a/b"}, "topic"),
        ({"topic": "non-persistent://public/default/a"}, "topic"),
        ({"topic": ""}, "topic"),
        ({"conn_id": "c"}, "either conn_id"),
        ({"service_url": None}, "either conn_id"),
        ({"service_url": None, "admin_url": None}, "either conn_id"),
        ({"service_url": "pulsar://u:s3cret@h"}, "service_url"),
        ({"admin_url": "ftp://h"}, "admin_url"),
        ({"starting": "yesterday"}, "starting"),
        ({"value": Avro('{"type": "record", "name": "r", "fields": []}', registry="http://registry")}, "subject"),
    ],
    ids=str,
)
def test_invalid_argument_is_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidError, match=named) as caught:
        source(**arguments)
    assert "s3cret" not in str(caught.value)


def test_spec_is_stored_without_secrets_and_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"conn_type": "pulsar", "host": "broker", "password": "s3cret", "extra": {"tls": True}}
    monkeypatch.setenv("AIRFLOW_CONN_P", json.dumps(fields))
    pulsar = PulsarSource(topic="orders", conn_id="p", value=Json("id long"), starting="latest")
    pipeline = Pipeline(name="p", log="memory://p", source=pulsar, sinks={"out": FilesSink(path="/out")})
    assert spec.from_json(json.loads(json.dumps(pipeline.to_json()))).source == pulsar
    access = pulsar.access()
    assert (access.service_url, access.admin_url) == ("pulsar+ssl://broker:6651", "https://broker:8443")
    assert pulsar.lineage({}) == [("pulsar://broker:6651", TOPIC)]
    assert "s3cret" not in f"{access!r}{pipeline.to_json()}{pulsar!r}"
    assert pulsar.warnings() == []
    monkeypatch.setenv("AIRFLOW_CONN_P", json.dumps({**fields, "extra": {}}))
    assert "without encryption" in pulsar.warnings()[0]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"conn_type": "http", "host": "h"}, "type pulsar"),
        ({"conn_type": "pulsar"}, "host"),
        ({"conn_type": "pulsar", "host": "h", "extra": {"tls": "yes"}}, "tls"),
        ({"conn_type": "pulsar", "host": "h", "extra": {"auth_plugin": "s3cret"}}, "property"),
        ({"conn_type": "pulsar", "host": "h", "extra": {"tls_ca_file": "/not/there"}}, "cannot be read"),
        ({"conn_type": "pulsar", "host": "h", "extra": {"admin_url": "http://u:s3cret@h"}}, "admin_url"),
    ],
    ids=str,
)
def test_invalid_connection_is_refused_without_its_secrets(
    monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_P", json.dumps(fields))
    with pytest.raises(InvalidError, match=message) as caught:
        PulsarSource(topic="orders", conn_id="p").access()
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [{"topic": "persistent://public/default/other"}, {"start": 5, "end": 5}, {"ledger": -1}, {"end": "9"}], ids=str
)  # fmt: skip
def test_forged_pins_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(LogDamagedError):
        source().read_pins([{"topic": PARTITION, "ledger": 3, "start": 0, "end": 9, **change}])


def test_range_over_several_ledgers_has_one_pin_for_each_ledger_with_entries() -> None:
    ledgers = Ledgers({3: 10, 8: 4})
    assert (ledgers.first, ledgers.end) == (at(3, 0), at(8, 4))
    assert ledgers.between("t", at(3, 7), at(8, 2)) == [LedgerPin("t", 3, 7, 10), LedgerPin("t", 8, 0, 2)]
    assert ledgers.between("t", at(3, 10), at(8, 0)) == []


@pytest.fixture
def topic(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Responses of the admin API: path → document. A missing one is 404."""
    documents: dict[str, Any] = {"persistent/public/default/orders/partitions": {"partitions": 1}}

    def get(url: str, **named: Any) -> Any:
        document = documents.get(url.partition("/admin/v2/")[2])
        response = requests.Response()
        response.status_code = 404 if document is None else 200
        response.raw = io.BytesIO(json.dumps(document).encode())
        return response

    monkeypatch.setattr(requests, "get", get)
    return documents


def stats(last: str, **ledgers: int) -> dict[str, Any]:
    """The response of ``internalStats``, in which an open ledger has 0 entries."""
    found = [{"ledgerId": int(name[1:]), "entries": entries} for name, entries in ledgers.items()]
    return {"lastConfirmedEntry": last, "ledgers": found}


STATS = "persistent/public/default/orders-partition-0/internalStats"


def slice_of(start: int, *, gap: bool = False, hint: Any = None) -> SourceSlice | None:
    planner = source().open(CommitLog(MemoryStore()), None)
    policy = "record_gap" if gap else "fail"
    return planner.slice({PARTITION: start}, planner.poll(hint), Limits(), hint, on_data_loss=policy)


def test_open_ledger_has_the_entries_of_the_last_confirmed_one(topic: dict[str, Any]) -> None:
    topic[STATS] = stats("7:4", l6=20, l7=0)
    planned = slice_of(at(6, 18))
    assert planned is not None
    assert planned.ranges == {PARTITION: (at(6, 18), at(7, 5))}
    assert planned.pins == [LedgerPin(PARTITION, 6, 18, 20), LedgerPin(PARTITION, 7, 0, 5)]
    assert (planned.rows, planned.hint) == (7, {"ends": {PARTITION: at(7, 5)}, "oldest": {PARTITION: at(6, 0)}})


def test_offset_stays_in_the_ledger_of_the_last_message(topic: dict[str, Any]) -> None:
    """Pulsar replaces the empty ledger 7 by another one when it loads the topic again."""
    topic[STATS] = stats("6:19", l6=20, l7=0)
    assert slice_of(at(6, 20)) is None
    topic[STATS] = stats("9:0", l6=20, l9=0)
    planned = slice_of(at(6, 20))
    assert planned is not None
    assert (planned.pins, planned.gaps) == ([LedgerPin(PARTITION, 9, 0, 1)], {})


@pytest.mark.parametrize("start", [at(5, 3), at(5, 20)])
def test_range_that_begins_in_a_deleted_ledger_fails_or_becomes_a_gap(topic: dict[str, Any], start: int) -> None:
    """The number of entries of a deleted ledger is unknown, so it is unknown whether it had unread ones."""
    topic[STATS] = stats("7:4", l6=20, l7=0)
    with pytest.raises(SourceChangedError, match="cannot prove"):
        slice_of(start)
    planned = slice_of(start, gap=True)
    assert planned is not None
    assert planned.gaps == {PARTITION: ((start, at(6, 0)),)}
    assert [pin.ledger for pin in planned.pins] == [6, 7]


def test_new_partition_is_read_from_its_first_ledger(topic: dict[str, Any]) -> None:
    topic[STATS] = stats("7:4", l6=20, l7=0)
    planned = slice_of(0)
    assert planned is not None
    assert planned.gaps == {}
    assert [pin.ledger for pin in planned.pins] == [6, 7]


def test_new_partition_that_lost_messages_after_an_aborted_plan_fails_or_has_a_gap(topic: dict[str, Any]) -> None:
    topic[STATS] = stats("7:4", l6=20, l7=0)
    aborted = slice_of(0)
    assert aborted is not None
    topic[STATS] = stats("7:4", l7=0)
    with pytest.raises(SourceChangedError, match="missing in Pulsar"):
        slice_of(0, hint=aborted.hint)
    planned = slice_of(0, gap=True, hint=aborted.hint)
    assert planned is not None
    assert planned.gaps == {PARTITION: ((0, at(7, 0)),)}
    assert planned.hint["oldest"] == {PARTITION: at(6, 0)}


def test_partition_that_ends_below_its_committed_offset_is_refused(topic: dict[str, Any]) -> None:
    topic[STATS] = stats("7:4", l6=20, l7=0)
    for gap in (False, True):
        with pytest.raises(SourceChangedError, match="ends below the committed offset"):
            slice_of(at(7, 9), gap=gap)


def test_missing_partition_with_unread_messages_fails_or_becomes_a_gap(topic: dict[str, Any]) -> None:
    hint = {"ends": {PARTITION: at(7, 5)}}
    with pytest.raises(SourceChangedError, match="missing in Pulsar"):
        slice_of(at(6, 0), hint=hint)
    planned = slice_of(at(6, 0), gap=True, hint=hint)
    assert planned is not None
    assert (planned.gaps, planned.pins) == ({PARTITION: ((at(6, 0), at(7, 5)),)}, [])


def test_missing_topic_is_named(topic: dict[str, Any]) -> None:
    topic.clear()
    with pytest.raises(SourceChangedError, match="does not exist"):
        slice_of(0)


@pytest.mark.parametrize("hint", [None, "text", {"ends": 7}, {"ends": {PARTITION: "x"}}], ids=str)
def test_hint_of_another_form_is_ignored(topic: dict[str, Any], hint: Any) -> None:
    topic[STATS] = stats("7:4", l7=0)
    assert slice_of(at(7, 0), hint=hint) is not None


def test_error_of_the_admin_api_has_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any, **named: Any) -> Any:
        raise requests.ConnectionError(f"failed with {named}")

    monkeypatch.setattr(requests, "get", fail)
    fields = {"conn_type": "pulsar", "host": "h", "password": "s3cret"}
    monkeypatch.setenv("AIRFLOW_CONN_P", json.dumps(fields))
    with pytest.raises(UnavailableError, match="admin API did not respond") as caught:
        PulsarSource(topic="orders", conn_id="p").initial_offsets()
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


class Redirecting(BaseHTTPRequestHandler):
    """The admin API of a cluster, in which another broker owns the topic. The first broker redirects to it."""

    owner: ClassVar[str] = ""
    tokens: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        if self.owner and not self.headers["Host"].startswith("localhost"):
            self.send_response(307)
            self.send_header("Location", f"{self.owner}{self.path}")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"partitions": 3}')

    def log_message(self, format: str, *args: Any) -> None:
        return


def test_redirect_to_the_broker_that_owns_the_topic_gets_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Redirecting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(Redirecting, "owner", f"http://localhost:{server.server_port}")
    monkeypatch.setattr(Redirecting, "tokens", [])
    admin = PulsarAdmin(Access(service_url="", admin_url=f"http://127.0.0.1:{server.server_port}", token="t"), TOPIC)
    try:
        assert len(admin.partitions()) == 3
    finally:
        server.shutdown()
        server.server_close()
    assert Redirecting.tokens == ["Bearer t", "Bearer t"]


def test_size_of_a_batch_is_in_the_id_of_a_message() -> None:
    assert _batch_size(bytes([8, 7, 16, 3, 24, 1, 32, 2, 48, 0x90, 0x4E])) == 10_000
    assert _batch_size(bytes([8, 7, 16, 3, 58, 2, 8, 1, 48, 5])) == 5, "a nested message is skipped"
    assert _batch_size(bytes([8, 7, 16, 3])) == 1


class Reader:
    """A reader that returns given messages: ledger, entry, batch index, number of messages in the batch."""

    def __init__(self, *ids: tuple[int, int, int, int]) -> None:
        self.ids = [*ids]

    def create_reader(self, topic: str, before: Any) -> Reader:
        return self

    def has_message_available(self) -> bool:
        return bool(self.ids)

    def read_next(self, timeout_millis: int) -> Any:
        ledger, entry, index, size = self.ids.pop(0)
        encoded = bytes([8, ledger, 16, entry, 48, size])
        id = SimpleNamespace(
            ledger_id=lambda: ledger, entry_id=lambda: entry, batch_index=lambda: index, serialize=lambda: encoded
        )
        return SimpleNamespace(message_id=lambda: id)

    def close(self) -> None:
        pass


def read(*ids: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    pin = {"topic": PARTITION, "ledger": 3, "start": 5, "end": 7}
    return [found for found, _ in messages(Reader(*ids), pin)]


def test_messages_that_the_client_repeats_after_it_has_connected_again_are_read_once() -> None:
    ids = [(3, 5, 0, 2), (3, 5, 0, 2), (3, 5, 1, 2), (3, 5, 1, 2), (3, 6, -1, 0), (3, 7, -1, 0)]
    assert read(*ids) == [(5, 0), (5, 1), (6, 0)]


@pytest.mark.parametrize(
    "ids",
    [
        [(3, 5, 0, 2), (3, 6, -1, 0)],
        [(3, 5, 1, 2), (3, 6, -1, 0)],
        [(3, 6, -1, 0)],
        [(4, 0, -1, 0)],
        [(3, 5, -1, 0)],
        [(3, 5, -1, 0), (3, 7, -1, 0)],
    ],
    ids=["rest of a batch", "start of a batch", "first entry", "ledger", "last entry", "entry before another"],
)
def test_range_with_a_missing_message_fails(ids: list[tuple[int, int, int, int]]) -> None:
    with pytest.raises(RangeChangedError, match="has no message for the planned entry 3:"):
        read(*ids)
