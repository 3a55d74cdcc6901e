"""A table of Postgres whose changes Debezium captures, and the tables that a pipeline keeps equal to it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
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


def wait_for_key(bootstrap: str, topic: str, key: bytes) -> None:
    """Wait until partition 0 of a topic has a record whose key contains some bytes."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid.uuid4().hex})
    deadline = time.monotonic() + TIMEOUT_S
    consumer.assign([TopicPartition(topic, 0, 0)])
    while True:
        message = consumer.poll(1)
        if message is not None and not message.error() and key in (message.key() or b""):
            break
        assert time.monotonic() < deadline, "Debezium did not send the change in time"
    consumer.close()


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
        """
        Create the captured table, and the table ``audit``, in which a trigger records each change of a row. The changes of a key are in order, because each
        transaction holds a lock on the rows that it has changed.
        """
        audit = f"{self.schema}.audit"
        names = ", ".join(self.names)
        news = ", ".join(f"NEW.{name}" for name in self.names)
        self.run(f"CREATE SCHEMA {self.schema}")
        self.run(f"CREATE TABLE {self.name} (id bigint PRIMARY KEY, {self.columns})")
        self.run(f"CREATE TABLE {audit} AS SELECT {names} FROM {self.name} WITH NO DATA")
        self.run(f"ALTER TABLE {audit} ADD COLUMN change bigserial, ADD COLUMN is_delete boolean")
        self.run(
            f"CREATE FUNCTION {self.schema}.record() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF TG_OP = 'DELETE' OR (TG_OP = 'UPDATE' AND NEW.id <> OLD.id) THEN INSERT INTO {audit} (id, is_delete) VALUES (OLD.id, true); END IF; "
            f"IF TG_OP <> 'DELETE' THEN INSERT INTO {audit} ({names}, is_delete) VALUES ({news}, false); END IF; RETURN NULL; END $$"
        )
        self.run(
            f"CREATE TRIGGER record AFTER INSERT OR UPDATE OR DELETE ON {self.name} FOR EACH ROW EXECUTE FUNCTION {self.schema}.record()"
        )

    @property
    def names(self) -> list[str]:
        """The columns that are decoded."""
        return [name.split()[0] for name in self.decoded.split(", ")]

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
        wait_for_key(self.broker.bootstrap, self.topic, wanted)

    @property
    def pipeline(self) -> Pipeline:
        """A pipeline that keeps a Delta table, an Iceberg table and another table of Postgres equal to the captured table, and a history in another table."""
        changes = Changes(
            keys=["id"],
            sequence_by="debezium_sequence",
            apply_as_deletes="debezium_op = 'd'",
            apply_as_truncates="debezium_op = 't'",
            unchanged_columns="debezium_unchanged",
            except_column_list=["debezium_op"],
        )
        history = replace(changes, apply_as_truncates=None, stored_as_scd_type=2)
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
            transform=for_each_table,
            sinks={
                "delta": DeltaSink(str(self.home / "delta"), changes=changes),
                "iceberg": IcebergSink(
                    str(self.home / "iceberg"), "lake.customers", properties=self.catalog, changes=changes
                ),
                "history": DeltaSink(str(self.home / "history"), changes=history),
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
        """Check that each table is equal to the captured table, value by value, and that the history is that of the table ``audit``."""
        names = self.names
        expected = _comparable(self.rows(", ".join(names)))
        found = {
            name: [tuple(row[column] for column in names) for row in table.to_pylist()]
            for name, table in self.targets().items()
        }
        found["postgres"] = self.run(f"SELECT {', '.join(names)} FROM {self.schema}.copied ORDER BY id")
        for name, rows in found.items():
            assert _comparable(rows) == expected, name
        self._check_history()

    def _check_history(self) -> None:
        """Each change of a row is a version, which ends where the next change is. A truncate ends none."""
        recorded: dict[int, list[tuple[Any, ...] | None]] = {}
        for is_delete, *row in self.run(
            f"SELECT is_delete, {', '.join(self.names)} FROM {self.schema}.audit ORDER BY change"
        ):
            recorded.setdefault(row[0], []).append(None if is_delete else tuple(row))
        versions: dict[int, list[dict[str, Any]]] = {}
        history = pa.table(DeltaTable(str(self.home / "history")).to_pyarrow_table())
        for version in history.sort_by("__START_AT").to_pylist():
            versions.setdefault(version["id"], []).append(version)
        for key, events in recorded.items():
            found = versions.pop(key, [])
            expected = [event for event in events if event is not None]
            assert _comparable([tuple(row[name] for name in self.names) for row in found]) == _comparable(expected), key
            ends = [
                (row["__END_AT"], following)
                for row, following in zip_longest(found, [row["__START_AT"] for row in found[1:]])
            ]
            are_last = [at + 1 == len(events) for at, event in enumerate(events) if event is not None]
            are_deleted = [events[at + 1 : at + 2] == [None] for at, event in enumerate(events) if event is not None]
            for (end, following), is_last, is_deleted in zip(ends, are_last, are_deleted, strict=True):
                assert (end is None) == is_last, key
                assert end is None or following is None or (end < following if is_deleted else end == following), key
        assert not versions, "the history has rows that were never in the table"


def _comparable(rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return [tuple("NaN" if value != value else value for value in row) for row in rows]


def for_each_table(records: DataFrame) -> dict[str, DataFrame]:
    """Return the columns of the row, and those that the sinks need to apply the changes. A history has no truncates."""
    needed = ("debezium_op", "debezium_sequence", "debezium_unchanged")
    added = [name for name in records.columns if name.startswith(("debezium_", "kafka_")) and name not in needed]
    rows = records.drop(*added)
    return {**dict.fromkeys(("delta", "iceberg", "postgres"), rows), "history": rows.where("debezium_op <> 't'")}
