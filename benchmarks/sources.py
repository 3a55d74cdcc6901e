"""
The throughput of each source, compared with its client or Spark's own reader on the same range: ``make bench ARGS=sources``.

The provider reads a planned range into Spark's ``noop`` sink. The planning is measured apart. The peer of a source with Python readers is its client library in
this process, one thread for each partition, which counts the bytes. The peer of the others is Spark's own reader into the same sink. Both read the records
without parsing, in turn, after one read that is not counted.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from airflow_provider_streamsem import (
    DeltaSource,
    IcebergSource,
    JdbcSource,
    KafkaSource,
    KinesisSource,
    Limits,
    NatsSource,
    PulsarSource,
)
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.source import ParsedRecords, Source
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from airflow_provider_streamsem.stores.memory import MemoryStore
from benchmarks import results
from benchmarks.kafka import produce, show
from tests.integration.parts.kafka import Broker
from tests.integration.parts.kinesis import Kinesalite
from tests.integration.parts.nats import NatsServer
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.pulsar import PulsarServer
from tests.integration.parts.server import running
from tests.integration.parts.spark import peers_conf, session_conf

ROUNDS = int(os.environ.get("ROUNDS", "7"))
ROWS = int(os.environ.get("ROWS", "1000000"))
MESSAGES = int(os.environ.get("MESSAGES", "200000"))
SIZE = 200
"""Bytes of the data of a record."""
PARTITIONS = 2
PEER = "client or Spark"


def record(number: int) -> bytes:
    """Return the data of a record."""
    return f"{number:0{SIZE}d}".encode()


def planned(source: Source) -> tuple[Any, float]:
    """Return the pins of all records of a source, and the milliseconds of their planning."""
    began = time.perf_counter()
    planner = source.open(CommitLog(MemoryStore()), None)
    offsets = source.initial_offsets()
    found = planner.slice(offsets, planner.poll(None), Limits(), None, on_data_loss="fail")
    assert found is not None
    return found.pins, (time.perf_counter() - began) * 1000


def read_in_spark(frame: Any) -> None:
    """Read a DataFrame to its end."""
    frame.write.format("noop").mode("overwrite").save()


def threads(read: Callable[[int], int]) -> int:
    """Read each partition in its own thread, and return the number of records."""
    with ThreadPoolExecutor(PARTITIONS) as pool:
        return sum(pool.map(read, range(PARTITIONS)))


@contextmanager
def kafka(spark: Any, root: Path) -> Iterator[tuple[Source, Callable[[], None]]]:
    """A topic. The peer is Spark's reader."""
    broker = Broker(root)
    with running(broker):
        produce(broker.bootstrap, "records", ROWS)
        options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "records"}
        yield (
            KafkaSource(topics=["records"], bootstrap_servers=broker.bootstrap),
            lambda: read_in_spark(spark.read.format("kafka").options(**options).load()),
        )


@contextmanager
def nats(spark: Any, root: Path) -> Iterator[tuple[Source, Callable[[], None]]]:
    """A stream. The peer is a pull consumer of nats-py without acknowledgements."""
    import nats as client
    from nats.js.api import AckPolicy, ConsumerConfig

    server = NatsServer(root)
    with running(server):
        server.create("RECORDS")
        for start in range(0, MESSAGES, 10_000):
            server.publish("RECORDS.a", map(record, range(start, min(start + 10_000, MESSAGES))))

        async def read() -> int:
            connection = await client.connect(server.address_of_clients)
            config = ConsumerConfig(ack_policy=AckPolicy.NONE)
            subscription = await connection.jetstream().pull_subscribe("RECORDS.a", stream="RECORDS", config=config)
            found = 0
            while found < MESSAGES:
                found += sum(len(message.data) == SIZE for message in await subscription.fetch(5_000, timeout=5))
            await connection.close()
            return found

        def peer() -> None:
            assert asyncio.run(read()) == MESSAGES

        yield NatsSource(stream="RECORDS", servers=server.address_of_clients, tasks=PARTITIONS), peer


@contextmanager
def pulsar(spark: Any, root: Path) -> Iterator[tuple[Source, Callable[[], None]]]:
    """A topic with batches of 1,000 messages. The peer is a reader of pulsar-client for each partition."""
    import pulsar as client

    server = PulsarServer(root, ledger_entries=50_000)
    with running(server):
        server.create("records", PARTITIONS)
        for partition in range(PARTITIONS):
            part = (record(number) for number in range(partition, MESSAGES, PARTITIONS))
            server.put(f"records-partition-{partition}", part, batch=1_000)
        os.environ["AIRFLOW_CONN_PULSAR"] = server.connection()

        def read(partition: int) -> int:
            connected = client.Client(
                server.service_url,
                authentication=client.AuthenticationToken(server.token()),
                logger=client.FileLogger(client.LoggerLevel.Error, "/dev/null"),
            )
            topic = f"persistent://public/default/records-partition-{partition}"
            reader = connected.create_reader(topic, client.MessageId.earliest)
            found = 0
            while reader.has_message_available():
                found += len(reader.read_next().data()) == SIZE
            connected.close()
            return found

        def peer() -> None:
            assert threads(read) == MESSAGES

        yield PulsarSource(topic="records", conn_id="pulsar"), peer


@contextmanager
def kinesis(spark: Any, root: Path) -> Iterator[tuple[Source, Callable[[], None]]]:
    """A stream. The peer is GetRecords of boto3, in a thread for each shard."""
    root.mkdir(parents=True)
    server = Kinesalite(root)
    with running(server):
        server.create("records", PARTITIONS)
        shards = [shard["ShardId"] for shard in server.client().list_shards(StreamName="records")["Shards"]]
        keys = ["0", str(2**128 - 1)]
        entries = [
            {"Data": record(n), "PartitionKey": "k", "ExplicitHashKey": keys[n % PARTITIONS]}
            for n in range(MESSAGES // 4)
        ]
        for start in range(0, len(entries), 500):
            server.client().put_records(StreamName="records", Records=entries[start : start + 500])

        def read(partition: int) -> int:
            boto3_client = server.client()
            where = {"StreamName": "records", "ShardId": shards[partition], "ShardIteratorType": "TRIM_HORIZON"}
            iterator = boto3_client.get_shard_iterator(**where)["ShardIterator"]
            found = 0
            while found < len(entries) // PARTITIONS:
                page = boto3_client.get_records(ShardIterator=iterator, Limit=10_000)
                found += sum(len(each["Data"]) == SIZE for each in page["Records"])
                iterator = page["NextShardIterator"]
            return found

        def peer() -> None:
            assert threads(read) == len(entries)

        yield KinesisSource(stream="records", endpoint_url=server.url), peer


@contextmanager
def jdbc(spark: Any, root: Path) -> Iterator[tuple[Source, Callable[[], None]]]:
    """A table of Postgres. The peer is psycopg, which the executors use too, in a thread for each task."""
    import psycopg

    server = Postgres(root)
    with running(server):
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE records (id bigserial PRIMARY KEY, data text)")
            connection.execute(
                f"INSERT INTO records (data) SELECT lpad(n::text, {SIZE}, '0') FROM generate_series(1, {ROWS}) n"
            )
            connection.execute("VACUUM ANALYZE records")
        host, _, port = server.dsn.removeprefix("postgresql://postgres@").removesuffix("/postgres").partition(":")
        connection_fields = {
            "conn_type": "postgres",
            "host": host,
            "port": int(port),
            "schema": "postgres",
            "login": "postgres",
        }
        os.environ["AIRFLOW_CONN_DB"] = json.dumps(connection_fields)
        size = -(-ROWS // PARTITIONS)

        def read(partition: int) -> int:
            bounds = (partition * size, (partition + 1) * size)
            with psycopg.connect(server.dsn) as client, client.cursor("reader") as cursor:
                cursor.itersize = 10_000
                cursor.execute("SELECT id, data FROM records WHERE id > %s AND id <= %s", bounds)
                return sum(len(data) == SIZE for _, data in cursor)

        def peer() -> None:
            assert threads(read) == ROWS

        yield JdbcSource(conn_id="db", table="records", cursor="id", wait_s=0, rows_per_task=size), peer


@contextmanager
def delta(spark: Any, root: Path) -> Iterator[tuple[Source, Callable[[], None]]]:
    """A Delta table of 20 versions. The peer is Spark's Delta reader."""
    path = str(root / "table")
    for number in range(20):
        rows(spark, number).write.format("delta").mode("append").save(path)
    yield DeltaSource(path=path, starting=0), lambda: read_in_spark(spark.read.format("delta").load(path))


@contextmanager
def iceberg(spark: Any, root: Path) -> Iterator[tuple[Source, Callable[[], None]]]:
    """An Iceberg table of 20 snapshots. The peer is Spark's Parquet reader on its files."""
    from pyiceberg.catalog import load_catalog

    properties = {"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": f"file://{root}/warehouse"}
    root.mkdir(parents=True)
    catalog = load_catalog("default", **properties)
    catalog.create_namespace("lake")
    table = None
    for number in range(20):
        arrow = rows(spark, number).toArrow()
        table = table or catalog.create_table("lake.records", arrow.schema)
        table.append(arrow)
    assert table is not None
    files = [path.removeprefix("file://") for path in table.inspect.files()["file_path"].to_pylist()]
    source = IcebergSource(path=f"{root}/warehouse", table="lake.records", properties=properties)
    yield source, lambda: read_in_spark(spark.read.parquet(*files))


def rows(spark: Any, number: int) -> Any:
    """Return a twentieth of the rows of a table."""
    size = ROWS // 20
    return spark.range(number * size, (number + 1) * size, 1, PARTITIONS).selectExpr(
        "id", f"lpad(string(id), {SIZE}, '0') AS data"
    )


SYSTEMS = {"Kafka": kafka, "NATS": nats, "Pulsar": pulsar, "Kinesis": kinesis, "JDBC": jdbc, "Delta": delta, "Iceberg": iceberg}  # fmt: skip


def measured(spark: Any, name: str) -> list[str]:
    """Measure one source, and return the row of the table."""
    times: dict[str, list[float]] = {"provider": [], PEER: []}
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)  # for the server of Postgres, which runs as another user
        with SYSTEMS[name](spark, Path(directory) / "server") as (source, peer):
            pins, plan_ms = planned(source)

            def provider() -> None:
                read_in_spark(cast(ParsedRecords, source.load(spark, pins)).frame)

            for turn in range(ROUNDS + 1):
                subjects = [("provider", provider), (PEER, peer)]
                for subject, read in subjects if turn % 2 else subjects[::-1]:
                    began = time.perf_counter()
                    read()
                    if turn:
                        times[subject].append((time.perf_counter() - began) * 1000)
    medians = {subject: statistics.median(values) for subject, values in times.items()}
    results.record("sources", name, times)
    ratios = [mine / other for mine, other in zip(times["provider"], times[PEER], strict=True)]
    provider_ms, peer_ms = medians.values()
    return [name, f"{plan_ms:.0f} ms", f"{provider_ms:.0f} ms", f"{peer_ms:.0f} ms", f"{statistics.median(ratios):.2f}"]


def main() -> None:
    """Measure each source, or those of the variable ``SOURCES``."""
    # Spark's Python workers inherit the variables.
    os.environ |= {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "a", "AWS_DEFAULT_REGION": "us-east-1"}
    conf = {**session_conf(), **peers_conf(), "spark.driver.memory": "2g"}
    spark = SparkEngine(master="local[2]", conf=conf).session()
    spark.sparkContext.setLogLevel("OFF")
    table = []
    for name in os.environ.get("SOURCES", " ".join(SYSTEMS)).split():
        table.append(measured(spark, name))
        print(table[-1], flush=True)
    show("Sources", ["source", "plan", "read of the range", PEER, "ratio (median of pairs)"], table)
    spark.stop()


if __name__ == "__main__":
    main()
