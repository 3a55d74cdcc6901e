"""The Kafka source without a cluster: its arguments, how a batch is divided, settings for Spark's client, connections."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem import Avro, FilesSink, Json, KafkaSource, Limits, Pipeline
from airflow_provider_streamsem.connections import Connection, connection, use_resolver
from airflow_provider_streamsem.connectors.kafka import cluster as kafka_cluster
from airflow_provider_streamsem.connectors.kafka.client import call, settings_of
from airflow_provider_streamsem.connectors.kafka.cluster import Partition, java_settings, parse_partition
from airflow_provider_streamsem.connectors.kafka.offset_ranges import shared
from airflow_provider_streamsem.connectors.kafka.sink import KafkaSink
from airflow_provider_streamsem.connectors.kafka.source import KafkaPlanner
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json
from airflow_provider_streamsem.protocol.entries import Committable
from tests.connectors.kafka.connections import connection_with

RECORD = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
GOOD: dict[str, Any] = {"topics": ["orders"], "bootstrap_servers": "h:1"}


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 10**12), min_size=1, max_size=40),
    st.integers(1, 10**9),
)
def test_batch_is_divided_so_that_no_partition_starves_or_reads_beyond_its_end(lags: dict[str, int], most: int) -> None:
    shares = shared(lags, most)
    assert shares.keys() == lags.keys()
    assert all((0 < shares[name] <= lag) if lag else shares[name] == 0 for name, lag in lags.items())
    assert sum(shares.values()) <= max(most, 0) + sum(lag > 0 for lag in lags.values())
    assert sum(lags.values()) > most or shares == lags


def test_batch_is_divided_in_proportion_to_the_lag() -> None:
    assert shared({"a": 900, "b": 100, "c": 0}, 100) == {"a": 90, "b": 10, "c": 0}
    assert shared({"a": 10**9, "b": 1}, 100) == {"a": 99, "b": 1}


@given(
    st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True),
    st.integers(0, 10**6),
    st.sampled_from(["", "1E0XtTAeTmmIowwYv02X_A"]),
)
def test_partition_name_round_trips(topic: str, number: int, topic_id: str) -> None:
    partition = Partition(topic, number, topic_id)
    assert parse_partition(partition.name) == partition


BAD: list[tuple[dict[str, Any], str]] = [
    ({"topics": []}, "exactly one of topics"), ({"topics": "orders"}, "topics"), ({"topics": ["a b"]}, "topics"), ({"topics": ["a", "a"]}, "twice"),
    ({"topic_pattern": "x.*"}, "exactly one of topics"), ({"topics": [], "topic_pattern": "("}, "regular expression"), ({"conn_id": "k"}, "exactly one of conn_id"),
    ({"bootstrap_servers": None}, "exactly one of conn_id"), ({"bootstrap_servers": "user:pw@h:1"}, "bootstrap_servers"), ({"starting": "soon"}, "starting"),
    ({"starting": "2026-01-31T00:00:00"}, "starting"), ({"starting": {"orders": 1}}, "starting"), ({"starting": {"orders-0": -1}}, "starting"), ({"starting": 5}, "starting"),
    ({"isolation": "none"}, "isolation"), ({"value": "json"}, "value"), ({"value": {"type": "xml", "schema": "x"}}, "type"), ({"value": {"type": "json"}}, "lacks"),
    ({"options": {"failOnDataLoss": "false"}}, "options"), ({"options": {"startingOffsets": "latest"}}, "options"), ({"value": {"type": "json", "schema": "id long", "mode": "x"}}, "mode"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "message"), BAD, ids=str)
def test_invalid_argument_of_a_kafka_source_is_reported_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        KafkaSource(**{**GOOD, **changes})


@pytest.mark.parametrize("limits", [Limits(max_bytes=1), Limits(max_files=1)], ids=str)
def test_limit_that_kafka_does_not_support_is_refused(limits: Limits) -> None:
    with pytest.raises(InvalidError, match="does not support"):
        Pipeline(name="p", log="/l", source=KafkaSource(**GOOD), sinks={"out": FilesSink(path="/o")}, limits=limits)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Json(""), "schema"), (lambda: Json("id long", {"mode": "DROPMALFORMED"}), "mode"), (lambda: Avro("{"), "schema"), (lambda: Avro('"long"'), "schema"),
        (lambda: Avro(RECORD, registry="ftp://h"), "registry"), (lambda: Avro(RECORD, registry="http://u:p@h"), "registry"),
    ],
)  # fmt: skip
def test_invalid_argument_of_a_decoder_is_reported_by_name(make: Any, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        make()


@pytest.mark.parametrize(
    "source",
    [
        KafkaSource(**GOOD), KafkaSource(topic_pattern="a.*", conn_id="k", starting="latest", isolation="read_uncommitted"),
        KafkaSource(**GOOD, value=Json("id long", {"timeZone": "UTC"}, has_schema_id=True), key=Avro(RECORD, registry="http://h:1"), starting={"orders-0": 7}),
    ],
)  # fmt: skip
def test_spec_with_a_kafka_source_round_trips(source: KafkaSource) -> None:
    spec = Pipeline(name="p", log="/l", source=source, sinks={"out": FilesSink(path="/o")})
    assert from_json(json.loads(spec.spec_bytes())) == spec


def test_settings_come_from_the_connection_and_spark_gets_the_same() -> None:
    extra = {
        "bootstrap.servers": "h:1", "group.id": "g", "security.protocol": "sasl_ssl", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": 'u"x', "sasl.password": "p\\w",
        "socket.timeout.ms": 5, "auto.offset.reset": "latest",
    }  # fmt: skip
    with use_resolver(lambda conn_id: Connection(conn_id=conn_id, conn_type="kafka", extra=extra)):
        settings = settings_of("k", None)
    assert not {"group.id", "auto.offset.reset"} & set(settings)
    assert java_settings(settings) == {
        "kafka.bootstrap.servers": "h:1",
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": 'org.apache.kafka.common.security.scram.ScramLoginModule required username="u\\"x" password="p\\\\w";',
    }


HOSTILE = (
    "plugin.library.paths", "ssl.engine.location", "ssl.engine.id", "ssl_engine_id", "ssl.engine.callback.data", "ssl.providers", "ssl.provider",
    "sasl.oauthbearer.config", "sasl.oauthbearer.jwks.endpoint.url", "sasl.oauthbearer.assertion.file", "sasl.kerberos.kinit.cmd", "sasl.kerberos.principal",
    "sasl.jaas.config", "sasl.login.class", "sasl.login.callback.handler.class", "sasl.client.callback.handler.class", "ssl.engine.factory.class",
    "interceptor.classes", "metric.reporters", "config.providers", "key.deserializer", "value.serializer", "partitioner.class", "security.providers",
    "kafka.plugin.library.paths", "Plugin.Library.Paths", "error_cb", "oauth_cb", "log_cb", "default.topic.config", "opaque", "socket.x",
)  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_property_that_may_load_code_reaches_no_client_and_is_reported_without_its_value(name: str) -> None:
    with connection_with({name: "secret-value"}), pytest.raises(InvalidError, match="no client was started") as caught:
        settings_of("k", None)
    assert f"property={name!r}" in str(caught.value)
    assert "bootstrap.servers" in str(caught.value)
    assert "secret-value" not in str(caught.value)


SOURCE = KafkaSource(topics=["orders"], conn_id="k", starting="2026-01-31T00:00:00Z")
SINK = KafkaSink("/staged", topic="orders", conn_id="k")
BATCH = SinkCommit(
    pipeline_uuid="u",
    sink="s",
    version=0,
    outcome="0",
    committable=Committable(format="parquet", rows=0),
    schema="",
    root=0,
)
PATHS: dict[str, Callable[[], object]] = {
    "time lookup of a new pipeline": SOURCE.initial_offsets,
    "time lookup of a reader": lambda: SOURCE.offsets_for_time(0),
    "retention sensor": lambda: SOURCE.expiry({}, within_ms=None, now_ms=0),
    "offsets sensor and planner": lambda: KafkaPlanner(SOURCE).poll(None),
    "check of pins": lambda: SOURCE.check_pins([], was_read=False),
    "Spark reader": lambda: SOURCE.load(None, []),  # type: ignore[arg-type]
    "lineage": lambda: SOURCE.lineage({}),
    "control topic of the sink": lambda: SINK.resolve_schema('{"type":"struct","fields":[{"name":"value","type":"binary","nullable":true}]}'),
    "marker of the sink": lambda: SINK.marker("u", "s"),
    "producer of the sink": lambda: SINK._fencing_producer(BATCH),
}  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_every_path_to_a_kafka_client_refuses_a_property_that_may_load_code(path: str) -> None:
    with (
        connection_with({"plugin.library.paths": "/tmp/evil.so"}),
        pytest.raises(InvalidError, match=r"plugin\.library\.paths"),
    ):
        PATHS[path]()


@pytest.mark.parametrize(
    "extra",
    [{"sasl.mechanism": "GSSAPI"}, {"sasl.mechanisms": "custom"}, {"security.protocol": "sasl_ssl"}],
)
def test_sasl_mechanism_that_is_not_supported_is_refused(extra: dict[str, object]) -> None:
    with connection_with(extra), pytest.raises(InvalidError, match=r"sasl\.mechanism"):
        settings_of("k", None)


def test_properties_for_other_tasks_in_the_same_connection_are_ignored() -> None:
    with connection_with({"acks": "1", "group.id": "g", "enable.idempotence": False, "linger.ms": 5}):
        assert settings_of("k", None) == {"bootstrap.servers": "127.0.0.1:1", "linger.ms": "5"}
        assert java_settings(settings_of("k", None)) == {"kafka.bootstrap.servers": "127.0.0.1:1"}


def test_unreadable_file_of_a_connection_is_reported() -> None:
    with pytest.raises(InvalidError, match=r"ssl\.ca\.location"):
        java_settings({"bootstrap.servers": "h:1", "ssl.ca.location": "/no/such/file"})


def test_connection_is_read_from_the_environment_in_airflows_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_A",
        json.dumps(
            {"conn_type": "kafka", "login": "u", "password": "p", "port": 9, "extra": '{"bootstrap.servers": "h:1"}'}
        ),
    )
    monkeypatch.setenv(
        "AIRFLOW_CONN_B", "spark-connect://us%40er:p%2Fw@host:15002/db?__extra__=%7B%22use_ssl%22%3A+true%7D"
    )
    monkeypatch.setenv("AIRFLOW_CONN_C", "kafka://?bootstrap.servers=h%3A1")
    a, b, c = (connection(name) for name in "abc")
    assert (a.conn_type, a.login, a.password, a.port, dict(a.extra)) == (
        "kafka",
        "u",
        "p",
        9,
        {"bootstrap.servers": "h:1"},
    )
    assert (b.conn_type, b.login, b.password, b.host, b.port, b.schema, dict(b.extra)) == (
        "spark_connect",
        "us@er",
        "p/w",
        "host",
        15002,
        "db",
        {"use_ssl": True},
    )
    assert dict(c.extra) == {"bootstrap.servers": "h:1"}
    assert "p/w" not in repr(b)


DEEP = '{"secret":' * 100_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{not json, secret",
        "kafka://h:port-secret",
        "[]",
        DEEP,
        json.dumps({"extra": DEEP}),
        f"kafka://?__extra__={DEEP}",
    ],
    ids=lambda text: text[:20],
)
def test_invalid_connection_is_reported_without_its_text(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    import traceback

    monkeypatch.setenv("AIRFLOW_CONN_K", text)
    with pytest.raises(InvalidError, match="connection") as caught:
        settings_of("k", None)
    assert "secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN])
def test_unreachable_brokers_are_reported_by_address(code: int) -> None:
    def request() -> None:
        raise KafkaException(KafkaError(code))

    settings = {"bootstrap.servers": "k1:9092,k2:9092", "sasl.password": "secret-value"}
    with pytest.raises(
        UnavailableError, match=r"bootstrap_servers='k1:9092,k2:9092'.*Do: check that the brokers run"
    ) as failed:
        call(request, settings=settings)
    assert "secret-value" not in str(failed.value)


class ElectingAdmin:
    """An admin client of a cluster that has no leader for a partition at the first requests."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals

    def list_offsets(self, request: Any, **given: Any) -> dict[Any, Any]:
        futures: dict[Any, Future[Any]] = {}
        for partition in request:
            futures[partition] = Future[Any]()
            if self.refusals > 0:
                futures[partition].set_exception(KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)))
            else:
                futures[partition].set_result(SimpleNamespace(offset=7))
        self.refusals -= 1
        return futures


@pytest.mark.parametrize(("refusals", "succeeds"), [(0, True), (2, True), (9, False)])
def test_offsets_are_requested_again_while_a_leader_is_elected(
    short_waits: None, refusals: int, succeeds: bool
) -> None:
    cluster = kafka_cluster.KafkaCluster({"bootstrap.servers": "k:9092"}, "read_committed")
    cluster._admin = ElectingAdmin(refusals)
    partition = Partition(topic="t", number=0)
    if succeeds:
        assert cluster.lows([partition]) == {partition: 7}
    else:
        with pytest.raises(UnavailableError, match="NOT_LEADER_FOR_PARTITION"):
            cluster.lows([partition])
