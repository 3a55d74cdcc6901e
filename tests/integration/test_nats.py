"""The NATS source on a real server with real Spark. Each message is committed once; lost messages fail the run or become a gap."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Avro, Json, Limits, NatsSource, Pipeline, open_log, reprocess, run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.connectors.nats import client
from airflow_provider_streamsem.connectors.nats.client import connected
from airflow_provider_streamsem.connectors.nats.reading import Reading
from airflow_provider_streamsem.errors import (
    InvalidError,
    RecordsMissingError,
    SourceChangedError,
    StoreRefusedError,
    UnavailableError,
)
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.integration.nats_stream import Stream
from tests.integration.parts import certificates
from tests.integration.parts.nats import NatsServer, Operator
from tests.integration.parts.server import free_port, running, search_path
from tests.integration.parts.spark import ConnectServer
from tests.integration.schema_registry import V1, V2, Registry, avro, running_registry

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("streamsem_spark")]


@pytest.fixture
def stream(nats: NatsServer, tmp_path: Path) -> Stream:
    return Stream(nats, tmp_path)


@pytest.fixture
def own_server(tmp_path: Path) -> Any:
    """Start a server that the test may stop."""
    server = NatsServer(tmp_path / "nats")
    with running(server):
        yield server


def test_drain_in_several_batches_and_spark_tasks_reads_every_message_once(stream: Stream) -> None:
    stream.put(range(25_000))
    result = stream.run("first", {"tasks": 2}, limits=Limits(max_rows=20_000))
    assert (result.counts["read"], result.batches) == (25_000, 2)
    stream.put(range(25_000, 25_010))
    assert stream.run("first").counts["read"] == 25_000
    assert lag(stream.pipeline()).lag == 10
    assert stream.run("second").counts["read"] == 10
    stream.check(range(25_010))
    assert stream.consumers() == 0


def test_columns_are_those_of_the_message(stream: Stream, streamsem_spark: SparkSession) -> None:
    before = datetime.now(timezone.utc)
    stream.put([1], kind="ä", Status="a header that status messages have too")
    stream.nats.publish(f"{stream.name}.us", [b"", b"\xff"])
    source = stream.source(value=None)
    planned = source.open(CommitLog(MemoryStore()), None)
    slice_ = planned.slice(source.initial_offsets(), planned.poll(None), Limits(), None, on_data_loss="fail")
    assert slice_ is not None
    streamsem_spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    try:
        frame = source.load(streamsem_spark, slice_.pins).frame
        rows = frame.selectExpr("*", "unix_micros(timestamp) AS micros").collect()
    finally:
        streamsem_spark.conf.unset("spark.sql.session.timeZone")
    assert [(row["subject"], row["sequence"], bytes(row["data"])) for row in rows] == [
        (f"{stream.name}.eu", 1, b'{"id": 1}'), (f"{stream.name}.us", 2, b""), (f"{stream.name}.us", 3, b"\xff"),
    ]  # fmt: skip
    assert [row["headers"] for row in rows] == [
        {"kind": "ä", "Status": "a header that status messages have too"},
        None,
        None,
    ]
    after = datetime.now(timezone.utc)
    assert before.timestamp() * 1_000_000 <= rows[0]["micros"] <= rows[2]["micros"] <= after.timestamp() * 1_000_000


def test_data_that_cannot_be_decoded_is_quarantined_and_empty_data_has_null_fields(stream: Stream) -> None:
    stream.put([0])
    stream.nats.publish(f"{stream.name}.eu", [b"", b"no json", b"\xff"])
    result = stream.run("r", limits=Limits(max_quarantined=2))
    assert result.counts["quarantined"] == 2
    assert stream.rows("id", "nats_sequence", "nats_subject") == [
        (0, 1, f"{stream.name}.eu"), (None, 2, f"{stream.name}.eu"),
    ]  # fmt: skip
    (file,) = (stream.root / "log").glob("quarantine/**/*.json*")
    bad_records = [json.loads(line) for line in file.read_text().splitlines()]
    assert sorted((record["sequence"], record["raw"], record["encoding"]) for record in bad_records) == [
        (3, "no json", "utf-8"), (4, "/w==", "base64"),
    ]  # fmt: skip


def test_avro_is_decoded_with_the_schema_that_wrote_it(stream: Stream) -> None:
    with running_registry() as registry:
        Registry.subjects["orders"] = [(11, json.dumps(V1)), (300, json.dumps(V2))]
        old, new = avro(V1, {"id": 1, "user": "a"}), avro(V2, {"id": 2, "user": None, "amount": 1.5})
        framed = [b"\x00" + n.to_bytes(4, "big") + data for n, data in ((11, old), (300, new), (12, old))]
        stream.nats.publish(f"{stream.name}.eu", [*framed, b"", b"\xff"])
        value = Avro(json.dumps(V2), registry=registry, subject="orders")
        result = stream.run("r", {"value": value})
    assert result.counts["quarantined"] == 2
    assert stream.rows("id", '"user"', "amount", "nats_sequence") == [
        (1, "a", 0.0, 1), (2, None, 1.5, 2), (None, None, None, 4),
    ]  # fmt: skip
    bad = open_log(str(stream.root / "log")).quarantined()
    assert {(record["sequence"], record["error"]) for record in bad} == {
        (3, "the data cannot be decoded: no version of the subject has its schema 12"),
        (5, "the data cannot be decoded: it does not start with the zero byte and the id of a schema"),
    }  # fmt: skip


def test_retry_reads_the_planned_range_though_more_messages_arrived(stream: Stream) -> None:
    stream.put(range(5))
    stream.dies_after_its_plan("a")
    stream.put(range(5, 8))
    assert run_batch(stream.pipeline(), run_key="a").counts["read"] == 5
    stream.run("b")
    stream.check(range(8))


def test_message_deleted_inside_the_stream_leaves_a_hole_that_is_not_a_loss(stream: Stream) -> None:
    stream.put(range(6))
    for sequence in (3, 6):
        stream.nats.ask(f"STREAM.MSG.DELETE.{stream.name}", {"seq": sequence})
    result = stream.run("a")
    assert (result.counts["read"], [*result.ranges.values()]) == (4, [(1, 7)])
    stream.put([6])
    assert stream.run("b").counts["read"] == 1
    stream.check([0, 1, 3, 4, 6])


def test_reprocessing_that_would_lose_deleted_messages_is_refused(stream: Stream) -> None:
    stream.put(range(4))
    stream.run("a")
    stream.nats.ask(f"STREAM.MSG.DELETE.{stream.name}", {"seq": 2})
    with pytest.raises(SourceChangedError, match="read=4, found=3"):
        reprocess(stream.pipeline(), 0)
    stream.check(range(4))


def test_messages_that_retention_deleted_fail_the_run_or_become_a_gap(nats: NatsServer, tmp_path: Path) -> None:
    stream = Stream(nats, tmp_path, max_msgs=4)
    stream.put(range(2))
    stream.run("a")
    stream.put(range(2, 10))
    with pytest.raises(SourceChangedError, match=r"lost=\(3, 7\)"):
        stream.run("b")
    result = stream.run("b", on_data_loss="record_gap")
    assert result.counts["read"] == 4
    assert [*result.ranges.values()] == [(3, 11)]
    stream.check([0, 1, 6, 7, 8, 9])


def test_purge_below_a_plan_fails_it_or_becomes_a_gap(stream: Stream) -> None:
    stream.put(range(5))
    stream.dies_after_its_plan("a")
    stream.nats.ask(f"STREAM.PURGE.{stream.name}", {"seq": 4})
    with pytest.raises(RecordsMissingError, match=r"range=\(1, 6\), first=4"):
        stream.run("a")
    stream.run("a", on_data_loss="record_gap")
    stream.check([3, 4])


def test_purge_of_the_whole_stream_becomes_a_gap_without_a_read(stream: Stream) -> None:
    stream.put(range(2))
    stream.run("a")
    stream.put(range(2, 5))
    stream.nats.ask(f"STREAM.PURGE.{stream.name}")
    with pytest.raises(SourceChangedError, match=r"lost=\(3, 6\)"):
        stream.run("b")
    assert stream.run("b", on_data_loss="record_gap").counts["read"] == 0
    stream.put([5])
    stream.run("c")
    stream.check([0, 1, 5])


@pytest.mark.parametrize("on_data_loss", ["fail", "record_gap"])
def test_recreated_stream_is_refused(stream: Stream, on_data_loss: str) -> None:
    stream.put(range(3))
    stream.run("a")
    stream.nats.ask(f"STREAM.DELETE.{stream.name}")
    with pytest.raises(SourceChangedError, match="does not exist"):
        stream.run("b", on_data_loss=on_data_loss)
    stream.nats.create(stream.name)
    stream.put(range(10, 20))
    with pytest.raises(SourceChangedError, match="deleted and recreated"):
        stream.run("b", on_data_loss=on_data_loss)
    stream.check(range(3))


def test_stream_recreated_under_a_plan_is_refused(stream: Stream) -> None:
    stream.put(range(3))
    stream.dies_after_its_plan("a")
    stream.nats.ask(f"STREAM.DELETE.{stream.name}")
    stream.nats.create(stream.name)
    stream.put(range(10, 20))
    with pytest.raises(RecordsMissingError, match="deleted and recreated"):
        stream.run("a")


@pytest.mark.parametrize("more", [0, 5], ids=["ends-below", "has-grown-again"])
def test_server_restored_from_an_older_copy_is_detected(own_server: NatsServer, tmp_path: Path, more: int) -> None:
    stream = Stream(own_server, tmp_path)
    stream.put(range(3))
    own_server.keep(tmp_path / "copy")
    stream.put(range(3, 6))
    stream.run("a")
    own_server.restore(tmp_path / "copy")
    stream.put(range(100, 100 + more))
    for on_data_loss in ("fail", "record_gap"):
        with pytest.raises(SourceChangedError, match="lost its newest messages"):
            stream.run("b", on_data_loss=on_data_loss)
    stream.check(range(6))


def test_planned_range_whose_messages_were_replaced_after_a_restore_is_refused(
    own_server: NatsServer, tmp_path: Path
) -> None:
    stream = Stream(own_server, tmp_path)
    own_server.keep(tmp_path / "copy")
    stream.put(range(3))
    stream.dies_after_its_plan("a")
    own_server.restore(tmp_path / "copy")
    stream.put(range(100, 110))
    with pytest.raises(SourceChangedError, match="lost its newest messages"):
        stream.run("a")


def test_subject_selects_messages_and_other_messages_start_no_batch(stream: Stream) -> None:
    only_eu = {"subject": f"{stream.name}.eu.*"}
    for n in range(4):
        stream.put([n], "eu.a")
        stream.put([100 + n], "us.a")
    assert stream.run("a", only_eu).counts["read"] == 4
    stream.put(range(104, 110), "us.a")
    assert stream.run("b", only_eu).status == "empty"
    assert lag(stream.pipeline(only_eu)).lag == 0
    stream.put([4], "eu.b")
    result = stream.run("c", only_eu, limits=Limits(max_rows=3))
    assert (result.counts["read"], result.batches) == (1, 3)
    stream.check(range(5))
    with pytest.raises(Exception, match="subject"):
        stream.run("d", {"subject": f"{stream.name}.us.*"})


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_stream_that_deletes_acknowledged_messages_is_refused(nats: NatsServer, tmp_path: Path, retention: str) -> None:
    stream = Stream(nats, tmp_path, retention=retention)
    with pytest.raises(InvalidError, match=f"retention='{retention}'"):
        stream.run("a")


def test_new_pipeline_starts_at_a_sequence_a_time_or_the_end(stream: Stream) -> None:
    stream.put(range(10))
    times = [stream.nats.ask(f"STREAM.MSG.GET.{stream.name}", {"seq": n})["message"]["time"] for n in (1, 10)]
    (partition,) = stream.source().initial_offsets()

    def starts(starting: str | int) -> int:
        return stream.source(starting=starting).initial_offsets()[partition]

    assert [starts(at) for at in ("earliest", "latest", 4, "2000-01-01T00:00:00Z", "2100-01-01T00:00:00Z")] == [
        1,
        11,
        4,
        1,
        11,
    ]
    assert 1 <= starts(f"{times[1][:23]}Z") <= 10
    with pytest.raises(InvalidError, match="first=1, end=11"):
        starts(12)


def test_expiry_counts_deleted_and_endangered_messages(nats: NatsServer, tmp_path: Path) -> None:
    stream = Stream(nats, tmp_path, max_msgs=6, max_age=3_600 * 10**9)
    stream.put(range(10))
    (partition,) = stream.source().initial_offsets()
    now_ms = int(datetime.now(timezone.utc).timestamp() * 1000)
    for offset, within_ms, expected in (
        (2, None, (3, 0, 0)),
        (7, 3_600_000, (0, 4, 2)),
        (7, 60_000, (0, 0, 2)),
        (11, None, (0, 0, None)),
    ):
        expiry = stream.source().expiry({partition: offset}, within_ms=within_ms, now_ms=now_ms + 1000)
        assert (expiry.lost, expiry.at_risk, expiry.spare) == expected


def test_messages_larger_than_a_request_are_read(nats: NatsServer, tmp_path: Path) -> None:
    stream = Stream(nats, tmp_path)
    big = json.dumps({"id": 7, "text": "x" * 900_000}).encode()
    nats.publish(f"{stream.name}.eu", [big] * 30)
    assert stream.run("a").counts["read"] == 30


def test_server_that_is_down_is_a_retryable_error_and_the_run_continues_after_a_restart(
    own_server: NatsServer, tmp_path: Path
) -> None:
    stream = Stream(own_server, tmp_path)
    stream.put(range(3))
    stream.dies_after_its_plan("a")
    own_server.kill()
    with pytest.raises(UnavailableError, match="no NATS server answered"):
        stream.run("a")
    own_server.start()
    stream.run("a")
    stream.check(range(3))


def test_server_that_does_not_answer_is_a_retryable_error(
    own_server: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream(own_server, tmp_path)
    stream.put(range(3))
    monkeypatch.setattr(client, "TIMEOUT_S", 2.0)
    with connected(stream.source().access(), None) as opened:
        own_server.send(signal.SIGSTOP)
        with pytest.raises(UnavailableError, match="did not report the result"):
            opened.stream(stream.name)
    with pytest.raises(UnavailableError, match="no NATS server answered"):
        stream.run("a")
    own_server.send(signal.SIGCONT)
    stream.run("a")
    stream.check(range(3))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[list[NatsServer]]:
    """Start a cluster of three servers. Streams with three replicas survive the loss of one."""
    ports = [free_port() for _ in range(3)]
    routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
    servers = [
        NatsServer(
            tmp_path / f"n{n}",
            f'server_name: n{n}\ncluster {{ name: test, listen: "127.0.0.1:{port}", routes: [{routes}] }}',
        )
        for n, port in enumerate(ports)
    ]
    with running(*servers):
        yield servers


@pytest.mark.prove
def test_cluster_that_loses_the_leader_of_the_stream_between_plan_and_read_loses_no_message(
    cluster: list[NatsServer], tmp_path: Path
) -> None:
    stream = until(lambda: Stream(cluster[0], tmp_path, num_replicas=3))
    stream.put(range(2_000))
    servers = {"servers": ",".join(server.address_of_clients for server in cluster)}

    class Dies(RowsEngine):
        def stage(self, job: object, log: object) -> object:  # type: ignore[override]
            raise Crash

    with pytest.raises(Crash):
        run_batch(stream.pipeline(servers), run_key="a", engine=Dies())  # type: ignore[arg-type]
    leader = int(cluster[0].ask(f"STREAM.INFO.{stream.name}")["cluster"]["leader"][1:])
    cluster[leader].kill()
    assert until(lambda: stream.run("a", servers)).counts["read"] == 2_000
    stream.nats = next(server for server in cluster if server.is_running)
    stream.put(range(2_000, 2_010))
    cluster[leader].start()
    assert until(lambda: stream.run("b", servers)).counts["read"] == 10
    stream.check(range(2_010))


def until(act: Callable[[], Any]) -> Any:
    """Return the result of a function. Repeat it while the cluster elects a leader."""
    for _ in range(30):
        with suppress(UnavailableError):
            return act()
        time.sleep(0.5)
    return act()


def test_server_killed_during_the_read_fails_the_attempt_and_the_retry_reads_everything(
    own_server: NatsServer, tmp_path: Path
) -> None:
    stream = Stream(own_server, tmp_path)
    stream.put(range(50))
    spec = stream.pipeline()
    log = CommitLog(MemoryStore())
    planner = spec.source.open(log, None)
    planned = planner.slice(spec.source.initial_offsets(), planner.poll(None), Limits(), None, on_data_loss="fail")
    assert planned is not None
    source = stream.source()
    read = Reading(access=source.access(), domain=None, subject=None, pins=tuple(planned.pins), tasks=1)
    batches = read._part(read.parts[0])
    assert next(batches).num_rows == 50
    own_server.kill()
    with pytest.raises(UnavailableError):
        next(batches)
    own_server.start()
    stream.run("a")
    stream.check(range(50))


USERS = """
accounts {
  A { jetstream: enabled, users: [
    {user: reader, password: "s3cret-reader", permissions: {
      publish: ["$JS.API.STREAM.INFO.ORDERS", "$JS.API.STREAM.MSG.GET.ORDERS", "$JS.API.CONSUMER.CREATE.ORDERS.>",
                "$JS.API.CONSUMER.MSG.NEXT.ORDERS.>", "$JS.API.CONSUMER.DELETE.ORDERS.>"],
      subscribe: ["_INBOX.>"]}},
    {user: nobody, password: "s3cret-nobody", permissions: {publish: ["x"], subscribe: ["_INBOX.>"]}},
    {user: admin, password: admin}
  ] }
}
no_auth_user: admin
"""


@pytest.mark.prove
def test_least_privilege_suffices_and_refusals_show_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = NatsServer(tmp_path / "nats", USERS)
    with running(server):
        server.create("ORDERS")
        server.publish("ORDERS.eu", [b'{"id": 0}'])
        host, _, port = server.address_of_clients.partition(":")
        for name, login, password in (
            ("READER", "reader", "s3cret-reader"),
            ("WRONG", "reader", "s3cret-wrong"),
            ("NOBODY", "nobody", "s3cret-nobody"),
        ):
            connection_fields = {
                "conn_type": "nats",
                "host": host,
                "port": int(port),
                "login": login,
                "password": password,
            }
            monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection_fields))
        spec = Pipeline(
            name="orders", log=str(tmp_path / "log"), source=NatsSource(stream="ORDERS", conn_id="reader", value=Json("id long")),
            sinks={"out": FilesSink(path=str(tmp_path / "out"), format="parquet")},
        )  # fmt: skip
        for conn_id, message in (("wrong", "did not accept the credentials"), ("nobody", "denied the user a request")):
            with pytest.raises(StoreRefusedError, match=message) as caught:
                run_batch(spec.replace(source=NatsSource(stream="ORDERS", conn_id=conn_id)), run_key="a")
            assert "s3cret" not in str(caught.value)
        assert run_batch(spec, run_key="a").counts["read"] == 1
    for directory, _, names in os.walk(tmp_path / "log"):
        assert all(b"s3cret" not in (Path(directory) / name).read_bytes() for name in names)


TOKEN = 'authorization { token: "s3cret-token" }'


def test_token_over_tls_is_accepted_and_is_never_sent_to_a_server_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pem = certificates.make(tmp_path / "certificates")
    key = tmp_path / "certificates" / "server.key"
    key.write_bytes(pem.server.read_bytes())
    tls = f'tls {{ cert_file: "{pem.server}", key_file: "{key}", ca_file: "{pem.authority}", verify: true }}'
    files = {
        "tls_ca_file": str(pem.authority),
        "tls_cert_file": str(pem.client),
        "tls_key_file": str(pem.client_key),
    }
    for name, configuration in (("plain", TOKEN), ("tls", f"{TOKEN}\n{tls}")):
        server = NatsServer(tmp_path / name, configuration)
        host, _, port = server.address_of_clients.partition(":")
        connection_fields = {
            "conn_type": "nats",
            "host": host,
            "port": int(port),
            "password": "s3cret-token",
            "extra": files,
        }
        monkeypatch.setenv("AIRFLOW_CONN_SAFE", json.dumps(connection_fields))
        source = NatsSource(stream="NONE", conn_id="safe")
        with running(server):
            if name == "plain":
                with pytest.raises(StoreRefusedError, match="requires TLS") as caught:
                    source.initial_offsets()
                assert "s3cret" not in str(caught.value)
            else:
                with pytest.raises(SourceChangedError, match="does not exist"):
                    source.initial_offsets()


def test_credentials_file_is_accepted_and_only_the_driver_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = Operator()
    server = NatsServer(tmp_path / "nats", operator.configuration)
    creds = tmp_path / "user.creds"
    creds.write_text(operator.credentials())
    host, _, port = server.address_of_clients.partition(":")
    connection_fields = {"conn_type": "nats", "host": host, "port": int(port), "extra": {"creds_file": str(creds)}}
    monkeypatch.setenv("AIRFLOW_CONN_CREDS", json.dumps(connection_fields))
    source = NatsSource(stream="NONE", conn_id="creds")
    with running(server):
        access = source.access()
        creds.write_text(operator.credentials(signed_by_another=True))
        with pytest.raises(StoreRefusedError, match="did not accept the credentials"):
            source.initial_offsets()
        creds.unlink()
        with connected(access, None) as opened:
            assert opened.stream("NONE") is None


READER = """
import sys
from airflow_provider_streamsem import FilesSink, Json, NatsSource, Pipeline, SparkEngine, run_batch
remote, address, stream, root = sys.argv[1:]
source = NatsSource(stream=stream, servers=address, value=Json("id long"))
spec = Pipeline(name="orders", log=f"{root}/log", source=source, sinks={"out": FilesSink(path=f"{root}/out", format="parquet")})
assert run_batch(spec, run_key="a", engine=SparkEngine(remote=remote)).counts["read"] == 30
"""


@pytest.mark.prove
def test_executors_of_a_spark_connect_server_read_the_stream(stream: Stream, tmp_path: Path) -> None:
    stream.put(range(30))
    server = ConnectServer(tmp_path / "connect")
    with running(server):
        argv = [sys.executable, "-c", READER, server.url, stream.nats.address_of_clients, stream.name, str(stream.root)]
        done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": search_path()}, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr.decode()[-3000:]
    stream.check(range(30))
