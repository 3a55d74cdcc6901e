"""Tables follow a table of Postgres: a real database with logical decoding, a real Debezium, a real Kafka, and Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import open_log, run_batch, verify
from airflow_provider_streamsem.connections import use_resolver
from tests.integration.captured_table import CapturedTable
from tests.integration.parts.kafka import Broker
from tests.integration.parts.postgres import Postgres
from tests.integration.parts.server import running

pytestmark = pytest.mark.integration

COLUMNS = (
    "name text, balance numeric(10,2), free numeric, born date, at timestamp, at_ms timestamp(3), zoned timestamptz, is_new boolean, data bytea, j jsonb, "
    "amount double precision, small real, tags text[], prices numeric(8,2)[], email text DEFAULT 'none', big text, blob bytea"
)
DECODED = (
    "id bigint, name string, balance decimal(10,2), free decimal(38,10), born date, at timestamp_ntz, at_ms timestamp_ntz, zoned timestamp, is_new boolean, "
    "data binary, amount double, small float, email string, big string, blob binary"
)
JSON_ALONE = (
    {"decimal_handling_mode": "string", "time_precision_mode": "microseconds"},
    {"decimal.handling.mode": "string", "time.precision.mode": "microseconds"},
)
JSON_WITH_SCHEMAS: tuple[Any, Any] = ({}, {"value.converter.schemas.enable": "true"})


@pytest.fixture
def customers(
    request: pytest.FixtureRequest, postgres: Postgres, broker: Broker, spark: SparkSession, tmp_path: Path
) -> Iterator[CapturedTable]:
    decoder, settings = request.param
    keep_nulls = {"value.converter.replace.null.with.default": "false"}
    table = CapturedTable(postgres, broker, tmp_path, COLUMNS, DECODED, decoder, {**settings, **keep_nulls})
    table.create()
    table.create_copy(COLUMNS)
    with use_resolver(table.connection):
        yield table


@pytest.mark.parametrize(
    "customers",
    [
        pytest.param(JSON_ALONE, id="json without schemas", marks=pytest.mark.prove),
        pytest.param(JSON_WITH_SCHEMAS, id="json with schemas"),
    ],
    indirect=True,
)
def test_delta_iceberg_and_postgres_follow_a_table_of_postgres(customers: CapturedTable) -> None:
    odd = "(%s, E'a\\u00e9\\U0001F600\\n\"', -99999999.99, 1234567890123456789012345678.0123456789, '0001-01-01', '9999-12-31 23:59:59.999999', "
    odd += "'1969-12-31 23:59:59.999', '2020-06-30 23:59:59.123456+05:45', true, '\\x00ff', '{}', 'NaN', '-Infinity', '{a,NULL}', '{1.25,NULL}', NULL, NULL, '\\x')"
    customers.run(
        "INSERT INTO customers VALUES " + odd.replace("%s", "1"),
        "INSERT INTO customers (id, name) SELECT n, 'n' || n FROM generate_series(2, 20) n",
    )
    with running(customers.worker):
        customers.capture()
        run_batch(customers.pipeline, run_key="snapshot", drain=True)
        customers.check()
        customers.run("INSERT INTO customers VALUES " + odd.replace("%s", "30"))
        customers.run(
            "UPDATE customers SET name = name || '!', balance = 1.5 WHERE id % 2 = 0",
            "DELETE FROM customers WHERE id IN (3, 4)",
        )
        customers.run("DELETE FROM customers WHERE id = 5")
        customers.run(
            "INSERT INTO customers (id, name, email) VALUES (5, 'again', NULL)",
            "UPDATE customers SET id = 40 WHERE id = 6",
        )
        # Values that Postgres stores outside of the row. Updates of other columns do not log them.
        toast = "(SELECT string_agg(md5((n * {0})::text), '') FROM generate_series(1, 300) n)"
        customers.run(
            *(
                f"INSERT INTO customers (id, big, blob) SELECT {n}, {toast.format(n)}, convert_to({toast.format(n)}, 'UTF8')"
                for n in (50, 51, 52)
            )
        )
        customers.run("UPDATE customers SET name = 'toasted' WHERE id >= 50")
        customers.capture()
        run_batch(customers.pipeline, run_key="changes", drain=True)
        customers.check()
        customers.run(
            "UPDATE customers SET name = 'again', big = NULL WHERE id = 51",
            "UPDATE customers SET name = 'again' WHERE id >= 50",
        )
        customers.run("DELETE FROM customers WHERE id = 52", "INSERT INTO customers (id, big) VALUES (52, 'short')")
        customers.capture()
        run_batch(customers.pipeline, run_key="unchanged", drain=True)
        customers.check()
        customers.run("TRUNCATE customers")
        customers.run("INSERT INTO customers (id, name) VALUES (1, 'after')")
        customers.capture()
        run_batch(customers.pipeline, run_key="truncate", drain=True)
        customers.check()
    assert open_log(str(customers.home / "log")).view().counts["quarantined"] == 0
    assert verify(str(customers.home / "log")).violations == []
