"""A table of Postgres whose changes Debezium captures, and the tables that a pipeline keeps equal to it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame

from airflow_provider_streamsem import (
    Changes,
    Debezium,
    DeltaSink,
    IcebergSink,
    JdbcSink,
    KafkaSource,
    Pipeline,
)
from airflow_provider_streamsem.connections import Connection
from tests.integration.parts.debezium import Debezium as DebeziumWorker
from tests.integration.parts.kafka import Broker
from tests.integration.parts.postgres import Postgres

TIMEOUT_S = 120
SENTINEL = -1


@dataclass
class CapturedTable:
    """
    The table ``customers`` in a schema of its own, with the primary key ``id bigint``.

    :param columns: the other columns, as in ``CREATE TABLE``
    :param decoded: columns of the row for the decoder, as Spark DDL
    """

    postgres: Postgres
    broker: Broker
    home: Path
    columns: str
    decoded: str
    decoder: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    schema: str = field(default_factory=lambda: f"s{uuid.uuid4().hex[:8]}")

    def create(self) -> None:
        """Create the captured table."""
        self.run(f"CREATE SCHEMA {self.schema}")
        self.run(f"CREATE TABLE {self.name} (id bigint PRIMARY KEY, {self.columns})")

    @property
    def name(self) -> str:
        return f"{self.schema}.customers"

    @property
    def topic(self) -> str:
        return f"{self.schema}.{self.name}"

    @cached_property
    def worker(self) -> DebeziumWorker:
        connector = {
            "name": self.schema, "connector.class": "io.debezium.connector.postgresql.PostgresConnector", "plugin.name": "pgoutput",
            "database.hostname": "127.0.0.1", "database.port": self.postgres.port, "database.user": "postgres", "database.password": "unused",
            "database.dbname": "postgres", "slot.name": self.schema, "publication.name": self.schema, "publication.autocreate.mode": "filtered",
            "topic.prefix": self.schema, "table.include.list": self.name, "skipped.operations": "none", "topic.creation.default.partitions": 1,
            **{name: value for name, value in self.settings.items() if ".converter" not in name},
        }  # fmt: skip
        converters = {
            f"{part}.converter": "org.apache.kafka.connect.json.JsonConverter" for part in ("key", "value")
        } | {"key.converter.schemas.enable": "false", "value.converter.schemas.enable": "false"}
        converters |= {name: value for name, value in self.settings.items() if ".converter" in name}
        return DebeziumWorker(
            self.home / "debezium", bootstrap=self.broker.bootstrap, connector=connector, converter=converters
        )

    def run(self, *statements: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run statements in one transaction, and return the rows of the last one."""
        with psycopg.connect(self.postgres.dsn, options="-c timezone=UTC") as connection:
            for statement in statements:
                cursor = connection.execute(statement.replace(" customers", f" {self.name}"), values or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def rows(self, columns: str = "*") -> list[tuple[Any, ...]]:
        """Return the rows of the captured table, ascending by key."""
        return self.run(f"SELECT {columns} FROM customers ORDER BY id")

    def capture(self) -> None:
        """Wait until Debezium has sent every change that is committed now: it sends them in the order of the commits."""
        at = time.time_ns()
        self.run(f"INSERT INTO customers (id) VALUES ({SENTINEL - at})")
        wanted = str(SENTINEL - at).encode()
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": uuid.uuid4().hex})
        deadline = time.monotonic() + TIMEOUT_S
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        while True:
            message = consumer.poll(1)
            if message is not None and not message.error() and wanted in (message.key() or b""):
                break
            assert time.monotonic() < deadline, "Debezium did not send the change in time"
        consumer.close()

    @property
    def pipeline(self) -> Pipeline:
        """A pipeline that keeps a Delta table, an Iceberg table and another table of Postgres equal to the captured table."""
        changes = Changes(
            keys=["id"],
            sequence_by="debezium_sequence",
            apply_as_deletes="debezium_op = 'd'",
            apply_as_truncates="debezium_op = 't'",
            unchanged_columns="debezium_unchanged",
            except_column_list=["debezium_op"],
        )
        copied = {"table": f"{self.schema}.copied", "markers": f"{self.schema}.markers"}
        return Pipeline(
            name="customers",
            log=str(self.home / "log"),
            source=KafkaSource(
                topics=[self.topic],
                bootstrap_servers=self.broker.bootstrap,
                value=Debezium(self.decoded, **self.decoder),
            ),
            where="debezium_op IS NOT NULL",
            transform=for_three_tables,
            sinks={
                "delta": DeltaSink(str(self.home / "delta"), changes=changes),
                "iceberg": IcebergSink(
                    str(self.home / "iceberg"), "lake.customers", properties=self.catalog, changes=changes
                ),
                "postgres": JdbcSink("copies", staging=str(self.home / "staging"), changes=changes, **copied),
            },
        )

    @property
    def catalog(self) -> dict[str, str]:
        home = self.home
        return {"type": "sql", "uri": f"sqlite:///{home}/catalog.db", "warehouse": f"file://{home}/warehouse"}

    def connection(self, conn_id: str) -> Connection:
        """Resolve the connection ``copies``."""
        return Connection(
            conn_id=conn_id, conn_type="postgres", host="127.0.0.1", port=self.postgres.port, login="postgres", schema="postgres"
        )  # fmt: skip

    def create_copy(self, columns: str) -> None:
        """Create the table of Postgres that the pipeline writes. Spark's times have microseconds."""
        columns = columns.replace("timestamp(3)", "timestamp")
        self.run(
            f"CREATE TABLE {self.schema}.copied (id bigint PRIMARY KEY, {columns}, debezium_sequence numeric(38) NOT NULL)"
        )

    def targets(self) -> dict[str, pa.Table]:
        """Return the rows of the tables that the pipeline keeps, ascending by key."""
        iceberg = load_catalog("default", **self.catalog).load_table("lake.customers").scan().to_arrow()
        delta = pa.table(DeltaTable(str(self.home / "delta")).to_pyarrow_table())
        return {"delta": delta.sort_by("id"), "iceberg": iceberg.sort_by("id")}

    def check(self) -> None:
        """Check that each table is equal to the captured table, value by value."""
        names = [name.split()[0] for name in self.decoded.split(", ")]
        expected = _comparable(self.rows(", ".join(names)))
        found = {
            name: [tuple(row[column] for column in names) for row in table.to_pylist()]
            for name, table in self.targets().items()
        }
        found["postgres"] = self.run(f"SELECT {', '.join(names)} FROM {self.schema}.copied ORDER BY id")
        for name, rows in found.items():
            assert _comparable(rows) == expected, name


def _comparable(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple("NaN" if value != value else value for value in row) for row in rows]


def for_three_tables(records: DataFrame) -> DataFrame:
    """Return the columns of the row, and those that the sinks need to apply the changes."""
    needed = ("debezium_op", "debezium_sequence", "debezium_unchanged")
    added = [name for name in records.columns if name.startswith(("debezium_", "kafka_")) and name not in needed]
    return records.drop(*added)
