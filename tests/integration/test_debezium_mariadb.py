"""
A table follows a table of MariaDB 11.4: a real binary log, a real Debezium, a real Kafka, and Spark.

Debezium's connector for MySQL reads the binary log, and refuses MariaDB by the version of the server. So the server calls itself MySQL 8.0. The events of its
binary log are those of MariaDB.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Changes, Debezium, DeltaSink, KafkaSource, Limits, Pipeline, run_batch, verify
from tests.integration.captured_table import wait_for_key
from tests.integration.parts import install
from tests.integration.parts.debezium import Debezium as DebeziumWorker
from tests.integration.parts.kafka import Broker
from tests.integration.parts.mariadb import MariaDB
from tests.integration.parts.server import home_for_others, running

pytestmark = [pytest.mark.integration, pytest.mark.prove]

COLUMNS = "id BIGINT PRIMARY KEY, name VARCHAR(40), amount DECIMAL(12,2), at DATETIME(6), born DATE, big LONGTEXT, data BLOB, ratio DOUBLE"
DECODED = (
    "id bigint, name string, amount decimal(12,2), at timestamp_ntz, born date, big string, data binary, ratio double"
)
NAMES = [column.split()[0] for column in DECODED.split(", ")]
ROUNDS, TRANSACTIONS, KEYS = 3, 60, 12


@pytest.fixture(scope="module")
def server() -> Iterator[MariaDB]:
    options = [
        "--log-bin=binlog",
        "--binlog-format=ROW",
        "--binlog-row-image=FULL",
        "--binlog-row-metadata=FULL",
        "--server-id=1",
    ]
    with home_for_others() as home:
        server = MariaDB(home / "server", programs=install.newer_mariadb(), options=[*options, "--version=8.0.35-test"])
        with running(server):
            yield server


class Captured:
    """A table of MariaDB, and a pipeline that keeps a Delta table equal to it."""

    def __init__(self, server: MariaDB, broker: Broker, home: Path) -> None:
        self.server, self.broker, self.home = server, broker, home
        self.name = f"t{uuid.uuid4().hex[:8]}"
        self.topic = f"{self.name}.test.{self.name}"
        connector = {
            "name": self.name, "connector.class": "io.debezium.connector.mysql.MySqlConnector", "database.hostname": "127.0.0.1",
            "database.port": server.port, "database.user": "me", "database.password": "hunter2", "database.server.id": 5401,
            "database.ssl.mode": "disabled", "topic.prefix": self.name, "table.include.list": f"test.{self.name}",
            "schema.history.internal.kafka.bootstrap.servers": broker.bootstrap, "schema.history.internal.kafka.topic": f"{self.name}.history",
            "provide.transaction.metadata": "true", "skipped.operations": "none", "topic.creation.default.partitions": 1,
        }  # fmt: skip
        json = "org.apache.kafka.connect.json.JsonConverter"
        converter = {
            "key.converter": json,
            "value.converter": json,
            "key.converter.schemas.enable": "false",
            "value.converter.schemas.enable": "true",
            "value.converter.replace.null.with.default": "false",
        }
        self.worker = DebeziumWorker(
            home / "debezium", bootstrap=broker.bootstrap, connector=connector, converter=converter
        )

    def run(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements in one transaction, and return the rows of the last one."""
        with closing(
            pymysql.connect(host="127.0.0.1", port=self.server.port, user="me", password="hunter2", database="test")
        ) as connection:
            cursor = connection.cursor()
            for statement in statements:
                cursor.execute(statement.replace(" customers", f" {self.name}"))
            connection.commit()
            return [tuple(row) for row in cursor.fetchall()]

    def capture(self) -> None:
        """Wait until Debezium has sent every change that is committed now: it sends them in the order of the commits."""
        key = -time.time_ns()
        self.run(f"INSERT INTO customers (id) VALUES ({key})")
        wait_for_key(self.broker.bootstrap, self.topic, str(key).encode())

    @property
    def pipeline(self) -> Pipeline:
        changes = Changes(
            keys=["id"],
            sequence_by="debezium_sequence",
            apply_as_deletes="debezium_op = 'd'",
            apply_as_truncates="debezium_op = 't'",
            column_list=[*NAMES, "debezium_sequence"],
        )
        return Pipeline(
            name="customers",
            log=str(self.home / "log"),
            source=KafkaSource(
                topics=[self.topic],
                bootstrap_servers=self.broker.bootstrap,
                value=Debezium(DECODED),
            ),
            where="debezium_op IS NOT NULL",
            limits=Limits(max_quarantined=0),
            sinks={"delta": DeltaSink(str(self.home / "delta"), changes=changes)},
        )

    def check(self) -> None:
        expected = self.run(f"SELECT {', '.join(NAMES)} FROM customers ORDER BY id")
        rows = DeltaTable(str(self.home / "delta")).to_pyarrow_table(columns=NAMES).sort_by("id").to_pylist()
        assert [tuple(row[name] for name in NAMES) for row in rows] == expected


def statement(rng: random.Random) -> str:
    """Return a statement about a few random rows."""
    key, other, value = rng.randrange(KEYS), rng.randrange(KEYS), rng.randrange(10**6)
    return rng.choice(
        [
            f"INSERT IGNORE INTO customers (id, name, amount, at) VALUES ({key}, 'n{value}', {value}.25, now(6)), ({other}, 'é{value}', NULL, NULL)",
            f"INSERT IGNORE INTO customers (id, big, data, ratio) VALUES ({key}, repeat('x{value}', 20), X'00ff', {value} / 7)",
            f"UPDATE customers SET name = 'u{value}', amount = -{value} WHERE id >= 0 AND id % 3 = {key % 3}",
            f"UPDATE customers SET born = '2020-02-29', name = 'v{value}' WHERE id = {key}",
            f"UPDATE IGNORE customers SET id = {other} WHERE id = {key}",
            f"DELETE FROM customers WHERE id = {key}",
        ]
    )


@pytest.mark.timeout(600)
def test_delta_table_follows_a_table_of_mariadb(
    server: MariaDB, broker: Broker, spark: SparkSession, tmp_path: Path
) -> None:
    rng, customers = random.Random(1), Captured(server, broker, tmp_path)
    customers.run(f"CREATE TABLE customers ({COLUMNS})")
    customers.run(
        "INSERT INTO customers (id, name, at) VALUES (1, 'before', '1969-12-31 23:59:59.999999'), (2, NULL, NULL)"
    )
    with running(customers.worker):
        for number in range(ROUNDS):
            for _ in range(TRANSACTIONS if number else 0):
                customers.run(*(statement(rng) for _ in range(rng.randrange(1, 5))))
            # The insert of the last key has a greater number of the row than the update.
            keys = [KEYS + 3 * number + at for at in range(3)]
            customers.run(
                f"INSERT INTO customers (id, name) VALUES {', '.join(f'({key}, NULL)' for key in keys)}",
                f"UPDATE customers SET name = 'updated' WHERE id = {keys[-1]}",
            )
            customers.capture()
            run_batch(customers.pipeline, run_key=str(number), drain=True)
            customers.check()
        customers.run("TRUNCATE TABLE customers")
        customers.run(
            "INSERT INTO customers (id, name) VALUES (1, 'after')", "UPDATE customers SET name = 'again' WHERE id = 1"
        )
        customers.capture()
        run_batch(customers.pipeline, run_key="truncated", drain=True)
        customers.check()
    assert verify(customers.pipeline).violations == []
