"""Decoding of keys and values on real Spark from a real broker. Invalid ones are quarantined with their location, and no secret is stored."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import Avro, Debezium, Json, KafkaSink, KafkaSource, open_log, read_committed
from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.errors import DataError, StoreRefusedError, UnavailableError
from airflow_provider_streamsem.testing.harness import PipelineHarness
from airflow_provider_streamsem.testing.messages import KafkaMessage
from tests.integration.parts.kafka import PASSWORD, USER, Broker
from tests.integration.parts.tokens import CLIENT, SCOPE, SECRET
from tests.integration.schema_registry import V1, V2, Registry, avro, running_registry
from tests.integration.topics import Topics

pytestmark = pytest.mark.integration

PLACEHOLDER = "__debezium_unavailable_value"


@pytest.fixture
def topics(broker: Broker, spark: SparkSession, tmp_path: Path) -> Topics:
    return Topics(broker, tmp_path)


def quarantined(topics: Topics) -> list[dict[str, Any]]:
    return sorted(open_log(str(topics.location / "log")).quarantined(), key=lambda record: record["offset"])


def test_json_values_become_columns_and_invalid_ones_are_quarantined_with_their_location(topics: Topics) -> None:
    topics.create("a", 1)
    bad = ['{"id": "x"}', "{broken", '{"id": 5} {"id": 6}', "[]", b"\xff\xfe"]
    topics.put("a", ['{"id": 1, "user": "ann"}', *bad, '{"id": 2}', None], key=b"k")
    spec = topics.pipeline("a", source={"value": Json("id long, user string")}, where="id is null or id > 0")
    result = topics.run(spec, "r")
    assert {name: result.counts[name] for name in ("read", "parsed", "quarantined", "written.out")} == {
        "read": 8,
        "parsed": 3,
        "quarantined": 5,
        "written.out": 3,
    }
    rows = topics.rows('id, "user", kafka_topic, kafka_partition, kafka_offset, decode(kafka_key)')
    name = topics.name("a")
    assert sorted(rows, key=lambda row: row[4]) == [
        (1, "ann", name, 0, 0, "k"),
        (2, None, name, 0, 6, "k"),
        (None, None, name, 0, 7, "k"),
    ]
    bad_records = quarantined(topics)
    assert [(r["topic"], r["partition"], r["offset"], r["encoding"]) for r in bad_records] == [
        (name, 0, n, "utf-8" if n < 5 else "base64") for n in range(1, 6)
    ]
    assert [r["raw"] for r in bad_records[:4]] == bad[:4]


@pytest.mark.parametrize("value", [None, Json("id long, user string")], ids=["binary", "json"])
def test_harness_gives_a_transform_the_same_input_as_a_real_broker(
    topics: Topics, spark: SparkSession, tmp_path: Path, value: Json | None
) -> None:
    messages: list[KafkaMessage] = []
    now = datetime.now(tz=timezone.utc).replace(
        microsecond=123_000
    )  # retention deletes records that are older than a week

    def put(data: bytes | str | None, partition: int, key: bytes | None, headers: list[tuple[str, bytes]]) -> None:
        at = now + timedelta(milliseconds=len(messages))
        at_ms = (at - datetime(1970, 1, 1, tzinfo=timezone.utc)) // timedelta(milliseconds=1)
        topics.put("h", [data], partition=partition, key=key, headers=headers, timestamp=at_ms)
        messages.append(KafkaMessage(value=data, key=key, partition=partition, timestamp=at, headers=headers))

    topics.create("h", 2)
    put('{"id": 1, "user": "ann"}', 0, b"k", [("trace", b"\x00\x01"), ("trace", b"")])
    for data, partition in ((None, 0), ("{broken", 0), (b"\xff", 1), ('{"id": 2}', 1), ("", 1)):
        put(data, partition, None, [])
    seen: list[str] = []

    def transform(frame: DataFrame) -> DataFrame:
        seen.append(frame.schema.simpleString())
        return frame

    spec = topics.pipeline("h", source={"value": value}, transform=transform)
    topics.run(spec, "r")
    harness_result = PipelineHarness(spec, tmp_path / "harness", spark=spark).run(messages)
    real = read_committed(spark, str(topics.location / "log")).toArrow().to_pylist()
    assert sorted(harness_result.rows(), key=str) == sorted(real, key=str)
    assert len(real) == (6 if value is None else 3)
    assert sorted(harness_result.quarantined, key=str) == sorted(
        open_log(str(topics.location / "log")).quarantined(), key=str
    )
    assert len(set(seen)) == 1


def test_key_is_decoded_and_a_binary_value_is_unchanged(topics: Topics) -> None:
    topics.create("a", 1)
    topics.put("a", [b"\x00raw"], key=b'{"id": 7}')
    topics.run(topics.pipeline("a", source={"key": Json("id long")}), "r")
    assert topics.rows('key.id, value, "offset"') == [(7, b"\x00raw", 0)]


def test_avro_values_become_columns_and_truncated_or_longer_ones_are_quarantined(topics: Topics) -> None:
    topics.create("a", 1)
    good = [avro(V1, {"id": n, "user": None if n % 2 else f"u{n}"}) for n in range(4)]
    topics.put("a", [*good, good[0][:-1], good[0] + b"\x00", b"", b"\x00", avro(V1, {"id": 0, "user": None})])
    result = topics.run(topics.pipeline("a", source={"value": Avro(json.dumps(V1))}), "r")
    assert (result.counts["parsed"], result.counts["quarantined"]) == (5, 4)
    reasons = ["it is truncated, or not a record of the schema"] * 4
    reasons[1] = "it has more bytes than one record of the schema"
    assert [record["error"].partition(": ")[2] for record in quarantined(topics)] == reasons
    assert sorted(topics.rows('id, "user"'), key=str) == sorted(
        [(0, "u0"), (1, None), (2, "u2"), (3, None), (0, None)], key=str
    )


def test_avro_string_that_is_not_utf8_is_quarantined(topics: Topics) -> None:
    topics.create("a", 1)
    topics.put("a", [avro(V1, {"id": 1, "user": "é"}), b"\x04\x02\x04\xff\xfe", avro(V1, {"id": 3, "user": None})])
    result = topics.run(topics.pipeline("a", source={"value": Avro(json.dumps(V1))}), "r")
    assert (result.counts["parsed"], result.counts["quarantined"]) == (2, 1)
    assert sorted(topics.rows('id, "user"'), key=str) == [(1, "é"), (3, None)]
    assert [record["offset"] for record in quarantined(topics)] == [1]


def test_old_avro_dates_are_read_as_written_with_any_session_setting(topics: Topics, spark: SparkSession) -> None:
    day = {"type": "record", "name": "Day", "fields": [{"name": "d", "type": {"type": "int", "logicalType": "date"}}]}
    topics.create("a", 1)
    topics.put("a", [avro(day, {"d": date(1500, 1, 1)})])
    spark.conf.set("spark.sql.avro.datetimeRebaseModeInRead", "LEGACY")
    try:
        topics.run(topics.pipeline("a", source={"value": Avro(json.dumps(day))}), "r")
    finally:
        spark.conf.unset("spark.sql.avro.datetimeRebaseModeInRead")
    assert topics.rows("d") == [(date(1500, 1, 1),)]


def test_invalid_avro_key_is_quarantined_with_its_location_key_and_value(topics: Topics) -> None:
    topics.create("a", 2)
    good, value = avro(V1, {"id": 7, "user": None}), '{"total": 1}'
    for key, data in ((good, value), (good[:-1], value), (None, value), (good, "{broken"), (b"\xff", "{broken")):
        topics.put("a", [data], key=key, partition=1)
    spec = topics.pipeline("a", source={"key": Avro(json.dumps(V1)), "value": Json("total long")})
    result = topics.run(spec, "r")
    assert (result.counts["read"], result.counts["parsed"], result.counts["quarantined"]) == (5, 2, 3)
    assert sorted(topics.rows("kafka_key.id, total, kafka_offset"), key=str) == [(7, 1, 0), (None, 1, 2)]
    location = {"version": 0, "topic": topics.name("a"), "partition": 1, "encoding": "utf-8"}
    bad_key, bad_value = (
        "key cannot be decoded: it is truncated, or not a record of the schema",
        "value cannot be decoded: no JSON object",
    )
    assert quarantined(topics) == [
        {**location, "offset": 1, "error": bad_key, "key": good[:-1].decode(), "key_encoding": "utf-8", "raw": value},
        {**location, "offset": 3, "error": bad_value, "key": good.decode(), "key_encoding": "utf-8", "raw": "{broken"},
        {
            **location,
            "offset": 4,
            "error": f"{bad_key}; {bad_value}",
            "key": "/w==",
            "key_encoding": "base64",
            "raw": "{broken",
        },
    ]


def test_source_without_records_has_its_columns_and_sends_no_request_to_the_registry(
    topics: Topics, spark: SparkSession
) -> None:
    """One of several sources may have no new records in a batch."""
    value = Avro(json.dumps(V1), registry="http://127.0.0.1:1")
    source = KafkaSource(topics=["a"], bootstrap_servers=topics.broker.bootstrap, value=value)
    assert source.load(spark, []).frame.columns[:2] == ["id", "user"]


@pytest.fixture
def registry() -> Iterator[str]:
    with running_registry() as url:
        yield url


def test_registry_avro_is_decoded_with_the_schema_that_wrote_it(topics: Topics, registry: str) -> None:
    topics.create("a", 1)
    Registry.subjects[f"{topics.name('a')}-value"] = [(11, json.dumps(V1)), (300, json.dumps(V2))]
    wire = lambda number, data: b"\x00" + number.to_bytes(4, "big") + data  # noqa: E731
    old, new = avro(V1, {"id": 1, "user": "a"}), avro(V2, {"id": 2, "user": None, "amount": 1.5})
    topics.put(
        "a", [wire(11, old), wire(300, new), wire(12, old), wire(300, old), old, b"\x00\x00", wire(11, old + b"x")]
    )
    spec = topics.pipeline("a", source={"value": Avro(json.dumps(V2), registry=registry)})
    result = topics.run(spec, "r")
    assert (result.counts["parsed"], result.counts["quarantined"]) == (2, 5)
    assert sorted(topics.rows('id, "user", amount')) == [(1, "a", 0.0), (2, None, 1.5)]
    assert [record["error"].partition(": ")[2] for record in quarantined(topics)] == [
        "no version of the subject has its schema 12",
        "it is truncated, or not a record of its schema 300",
        "it does not start with the zero byte and the id of a schema",
        "it does not start with the zero byte and the id of a schema",
        "it has more bytes than one record of its schema 11",
    ]


def test_records_whose_values_the_reader_schema_would_change_are_quarantined_with_the_schema_version(
    topics: Topics, registry: str
) -> None:
    def schema_with(unit: str) -> dict[str, Any]:
        return {
            "type": "record",
            "name": "E",
            "fields": [{"name": "at", "type": {"type": "long", "logicalType": unit}}],
        }

    topics.create("a", 1)
    millis, micros = schema_with("timestamp-millis"), schema_with("timestamp-micros")
    subject = f"{topics.name('a')}-value"
    Registry.subjects[subject] = [(11, json.dumps(millis)), (12, json.dumps(micros))]
    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    head = lambda number: b"\x00" + number.to_bytes(4, "big")  # noqa: E731
    whole = head(12) + avro(micros, {"at": at})
    topics.put("a", [head(11) + avro(millis, {"at": at}), whole, whole[:-1]])
    result = topics.run(topics.pipeline("a", source={"value": Avro(json.dumps(micros), registry=registry)}), "r")
    assert (result.counts["parsed"], result.counts["quarantined"]) == (1, 2)
    assert topics.rows('epoch_us("at")') == [(int(at.timestamp()) * 1_000_000,)]
    bad, truncated = quarantined(topics)
    assert bad["offset"] == 0
    assert truncated["error"] == "value cannot be decoded: it is truncated, or not a record of its schema 12"
    assert bad["error"] == (
        f"value cannot be decoded: schema 11 (subject {subject}, version 1): "
        "its values would change in field at (timestamp-millis is read as timestamp-micros)"
    )


def test_records_of_a_subject_without_a_readable_version_are_quarantined(topics: Topics, registry: str) -> None:
    def schema_with(kind: str) -> dict[str, Any]:
        return {"type": "record", "name": "E", "fields": [{"name": "n", "type": kind}]}

    topics.create("a", 1)
    Registry.subjects[f"{topics.name('a')}-value"] = [(11, json.dumps(schema_with("long")))]
    topics.put("a", [b"\x00" + (11).to_bytes(4, "big") + avro(schema_with("long"), {"n": 1})])
    result = topics.run(
        topics.pipeline("a", source={"value": Avro(json.dumps(schema_with("double")), registry=registry)}), "r"
    )
    assert (result.counts["parsed"], result.counts["quarantined"]) == (0, 1)
    assert "long is read as double" in quarantined(topics)[0]["error"]


def _event_schema(*columns: dict[str, Any]) -> dict[str, Any]:
    """The schema of events as Debezium registers it: a change of the table adds columns, and changes the types of others."""
    optional = lambda kind: ["null", kind]  # noqa: E731
    value = {
        "type": "record", "name": "Value", "namespace": "shop.public.orders",
        "fields": [{"name": "id", "type": "long"}, *({"name": c["name"], "type": optional(c["type"]), "default": None} for c in columns)],
    }  # fmt: skip
    source = {"type": "record", "name": "Source", "namespace": "io.debezium.connector.postgresql", "fields": [
        {"name": "connector", "type": "string"}, {"name": "ts_ms", "type": "long"}, {"name": "sequence", "type": optional("string")},
    ]}  # fmt: skip
    fields = [
        ("before", optional(value)),
        ("after", optional("shop.public.orders.Value")),
        ("source", source),
        ("op", "string"),
    ]
    return {
        "type": "record", "name": "Envelope", "namespace": "shop.public.orders", "fields": [{"name": n, "type": t} for n, t in fields]
    }  # fmt: skip


def test_events_of_debezium_in_avro_are_decoded_with_the_meaning_in_the_schema_that_wrote_them(
    topics: Topics, registry: str
) -> None:
    balance = {"name": "balance", "type": {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 2}}
    wider = {"name": "balance", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}}
    millis = {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.Timestamp"}}
    micros = {"name": "at", "type": {"type": "long", "connect.name": "io.debezium.time.MicroTimestamp"}}
    name, data = {"name": "name", "type": "string"}, {"name": "data", "type": "bytes"}
    first, second = _event_schema(balance, millis, name, data), _event_schema(wider, micros, name)
    topics.create("a", 1)
    Registry.subjects[f"{topics.name('a')}-value"] = [(11, json.dumps(first)), (12, json.dumps(second))]
    source = {"connector": "postgresql", "ts_ms": 1_700_000_000_123, "sequence": '["5","7"]'}

    def event(number: int, schema: dict[str, Any], op: str, **row: Any) -> bytes:
        image = {"before": row if op == "d" else None, "after": None if op == "d" else row}
        return b"\0" + number.to_bytes(4, "big") + avro(schema, {**image, "source": source, "op": op})

    at = datetime(2020, 1, 2, 3, 4, 5, 123000)
    since = at - datetime(1970, 1, 1)
    good = [
        event(
            11,
            first,
            "c",
            id=1,
            balance=Decimal("12.30"),
            at=since // timedelta(milliseconds=1),
            name="é😀",
            data=b"\0\xff",
        ),
        event(
            12,
            second,
            "u",
            id=1,
            balance=Decimal("12.345"),
            at=since // timedelta(microseconds=1) + 456,
            name=PLACEHOLDER,
        ),
        event(12, second, "d", id=2, balance=None, at=None, name=None),
    ]
    bad = [
        good[0][:-1],
        good[0] + b"\0",
        b"\0\0\0\0\x63" + good[0][5:],
        b"x",
        good[0].replace("é".encode(), b"\xc3\x28"),
    ]
    topics.put("a", [good[0], *bad, *good[1:], None])
    value = Debezium("id long, balance decimal(12,3), at timestamp_ntz, name string, data binary", registry=registry)
    spec = topics.pipeline("a", source={"value": value}, where="debezium_op IS NOT NULL")
    result = topics.run(spec, "r")
    assert {n: result.counts[n] for n in ("read", "quarantined", "filtered")} == {
        "read": 9,
        "quarantined": 5,
        "filtered": 1,
    }
    columns = 'debezium_op, id, balance, "at", name, data, debezium_unchanged, debezium_sequence'
    sequence = Decimal(5 * 10**19 + 7)
    assert sorted(topics.rows(columns)) == [
        ("c", 1, Decimal("12.300"), at, "é😀", b"\0\xff", None, sequence),
        ("d", 2, None, None, None, None, None, sequence),
        ("u", 1, Decimal("12.345"), at + timedelta(microseconds=456), None, None, ["name", "data"], sequence),
    ]
    reasons = [record["error"].partition(": ")[2] for record in quarantined(topics)]
    assert reasons == [
        "it is truncated, or not a record of its schema 11",
        "it has more bytes than one record of its schema 11",
        "no version of the subject has its schema 99",
        "it does not start with the zero byte and the id of a schema",
        "a string in it is not UTF-8",
    ]


def test_registry_that_is_down_or_empty_fails_the_batch_and_advances_no_offset(topics: Topics, registry: str) -> None:
    topics.create("a", 1)
    topics.put("a", [b"\x00\x00\x00\x00\x01x"])
    spec = topics.pipeline("a", source={"value": Avro(json.dumps(V1), registry=registry)})
    with pytest.raises(DataError, match="has no Avro schema"):
        topics.run(spec, "r")
    Registry.is_down = True
    with pytest.raises(UnavailableError, match="registry"):
        topics.run(spec, "r")
    Registry.is_down, Registry.subjects[f"{topics.name('a')}-value"] = False, [(1, "no schema")]
    with pytest.raises(UnavailableError, match="registry"):
        topics.run(spec, "r")
    assert open_log(spec.log).head == -1


def test_value_fields_named_like_kafka_columns_are_refused(topics: Topics) -> None:
    topics.create("a", 1)
    topics.put("a", ['{"kafka_offset": 1}'])
    with pytest.raises(DataError, match="kafka_offset"):
        topics.run(topics.pipeline("a", source={"value": Json("kafka_offset long")}), "r")


def secured(broker: Broker, kind: str, password: str = PASSWORD, *, endpoint: str = "") -> str:
    """
    Return an Airflow connection to a listener with security.

    :param endpoint: URL of the token endpoint, for OAUTHBEARER
    """
    user = {"sasl.username": USER, "sasl.password": password}
    authority = {"ssl.ca.location": str(broker.certificates.authority)}
    client = {
        "ssl.certificate.location": str(broker.certificates.client),
        "ssl.key.location": str(broker.certificates.client_key),
    }
    extra = {
        "PLAIN": {
            "bootstrap.servers": broker.bootstrap_sasl,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            **user,
        },
        "SCRAM over TLS": {
            "bootstrap.servers": broker.bootstrap_scram,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            **user,
            **authority,
        },
        "mutual TLS": {
            "bootstrap.servers": broker.bootstrap_mutual,
            "security.protocol": "SSL",
            **authority,
            **client,
        },
        "OAUTHBEARER": {
            "bootstrap.servers": broker.bootstrap_oauth,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.client.id": CLIENT,
            "sasl.oauthbearer.client.secret": SECRET if password == PASSWORD else password,
            "sasl.oauthbearer.scope": SCOPE,
            "sasl.oauthbearer.token.endpoint.url": endpoint,
        },
    }[kind]
    return json.dumps({"conn_type": "kafka", "extra": {**extra, "group.id": "not-used"}})


@pytest.fixture(scope="module")
def endpoint(broker: Broker) -> Iterator[str]:
    with broker.issuer.serving() as url:
        yield url


@pytest.mark.parametrize("kind", ["PLAIN", "SCRAM over TLS", "mutual TLS", "OAUTHBEARER"])
def test_secured_cluster_is_read_and_written_and_no_secret_is_stored_or_printed(
    topics: Topics, endpoint: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kind: str
) -> None:
    topics.create("a", 1)
    topics.create("b", 1)
    topics.put("a", ["1", "2"])
    monkeypatch.setenv("AIRFLOW_CONN_SECURED_KAFKA", secured(topics.broker, kind, endpoint=endpoint))
    key = topics.broker.certificates.client_key.read_text().splitlines()
    secrets = {PASSWORD, SECRET, key[1], key[-2]}
    spec = topics.pipeline("a")
    spec = spec.replace(
        source=KafkaSource(topics=[topics.name("a")], conn_id="secured_kafka"),
        sinks={
            **spec.sinks,
            "topic": KafkaSink(str(topics.location / "staged"), topic=topics.name("b"), conn_id="secured_kafka"),
        },
        transform=lambda frame: {"out": frame, "topic": frame.select("value")},
    )
    result = topics.run(spec, "r")
    assert result.counts["read"] == 2
    topics.check(Counter(["1", "2"]))
    assert topics.read("b") == Counter(["1", "2"])
    written = [
        path for directory, _, names in os.walk(topics.location) for path in (Path(directory) / name for name in names)
    ]
    assert len(written) > 5
    out = capfd.readouterr()
    output = out.out + out.err + json.dumps(result.to_json()) + repr(connection("secured_kafka")) + repr(spec)
    for secret in secrets:
        assert [str(path) for path in written if secret.encode() in path.read_bytes()] == []
        assert secret not in output


@pytest.mark.parametrize(
    ("kind", "refusal", "error"),
    [
        ("PLAIN", "Kafka refused the credentials", StoreRefusedError),
        ("SCRAM over TLS", "Kafka refused the credentials", StoreRefusedError),
        ("OAUTHBEARER", "the token endpoint issued no token", UnavailableError),
    ],
)
def test_error_for_a_wrong_password_names_the_credentials_and_does_not_quote_them(
    topics: Topics, endpoint: str, monkeypatch: pytest.MonkeyPatch, kind: str, refusal: str, error: type[Exception]
) -> None:
    import traceback

    monkeypatch.setattr("airflow_provider_streamsem.connectors.kafka.cluster.TIMEOUT_S", 3.0)
    wrong = secured(topics.broker, kind, "wrong-" + PASSWORD, endpoint=endpoint)
    monkeypatch.setenv("AIRFLOW_CONN_SECURED_KAFKA", wrong)
    topics.create("a", 1)
    spec = topics.pipeline("a").replace(source=KafkaSource(topics=[topics.name("a")], conn_id="secured_kafka"))
    with pytest.raises(error, match=refusal) as caught:
        topics.run(spec, "r")
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
