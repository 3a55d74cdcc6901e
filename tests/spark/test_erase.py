"""Erasures on real Spark: in each format only the selected rows disappear, and no stored object has a byte of the value."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import Changes, DeltaSink, FilesSink, IcebergSink, JdbcSink, erase, open_log, verify
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.maintenance.erase import Erased
from tests.connectors.files.odd_rows import nested_values
from tests.connectors.sql.sqlite_database import database_at, execute
from tests.spark_location import JSON, Location

pytestmark = pytest.mark.spark

PERSON = "u-7f3a9c51"


@pytest.mark.parametrize("format", ["parquet", "orc", "json", "csv"])
def test_only_the_selected_rows_of_each_format_disappear(location: Location, spark: SparkSession, format: str) -> None:
    def pipeline(partition_by: list[str]) -> Any:
        return location.pipeline(
            source={"format": "text"},
            sink={"format": format, "partition_by": partition_by},
            transform=lambda frame: nested_values(frame, format),
        )

    for number, partition_by in enumerate([["s", "i"], []]):
        location.put(f"{number}.txt", "x")
        location.run(pipeline(partition_by))
    before = location.rows(spark)
    ids = sorted({row["id"] for row in before})
    for chosen in (ids[1:4], ids[4:]):
        done = erase(pipeline([]), where=f"id IN ({', '.join(map(str, chosen))})")
        assert [each.rows for each in done.sinks] == [sum(row["id"] in chosen for row in before)]
        before = [row for row in before if row["id"] not in chosen]
        assert sorted(map(repr, location.rows(spark))) == sorted(map(repr, before))
    location.check()


@pytest.mark.parametrize("where", ["id = '1'", "name = 1", "score = 1", "day = '2026-01-01'"])
def test_value_of_another_type_than_the_column_is_refused(location: Location, where: str) -> None:
    location.put("0.json", '{"id": 1, "name": "x"}\n')
    pipeline = location.pipeline(
        source=JSON, transform=lambda frame: frame.withColumns({"score": F.lit(1.5), "day": F.current_date()})
    )
    location.run(pipeline)
    with pytest.raises(InvalidError, match="type of a column does not fit"):
        erase(pipeline, where=where)
    assert open_log(str(location.root / "log")).head == 0


class Shop:
    """Customers into files, a Delta table with changes, an Iceberg table and a database table. Each file has a record that cannot be parsed."""

    def __init__(self, root: Path, location: Location) -> None:
        self.root, self.location = root, location
        changes = Changes(keys=["user"], sequence_by="seq", apply_as_deletes="op = 'd'", except_column_list=["op"])
        sinks = {
            "files": FilesSink(str(root / "files"), partition_by=["country"]),
            "delta": DeltaSink(str(root / "delta"), changes=changes),
            "iceberg": IcebergSink(
                str(root / "iceberg"),
                table="shop.users",
                properties={"type": "sql", "uri": f"sqlite:///{root}/catalog.db", "warehouse": str(root)},
            ),
            "appended": DeltaSink(str(root / "appended")),
            "database": JdbcSink(conn_id="db", table="users", staging=str(root / "staging")),
        }
        self.pipeline = location.pipeline(
            source={"format": "json", "schema": "user string, seq long, op string, country string"}
        ).replace(
            sinks=sinks,
            transform=lambda frame: {
                **dict.fromkeys(["files", "iceberg", "appended", "database"], frame.drop("op")),
                "delta": frame,
            },
        )

    def run(self, number: int, *events: tuple[str, str]) -> None:
        lines = [
            json.dumps({"user": user, "seq": 10 * number + at, "op": op, "country": "DE"})
            for at, (user, op) in enumerate(events)
        ]
        lines += [f'{{"user": "{user}", broken' for user, _ in events]
        self.location.put(f"{number}.json", "".join(line + "\n" for line in lines))
        self.location.run(self.pipeline)

    def stored(self) -> Iterator[tuple[Path, str]]:
        """Yield each object below the log, the datasets and the tables, as text. The rows of Parquet files are decoded."""
        for path in self.root.rglob("*"):
            if (
                not path.is_file()
                or path.is_relative_to(self.location.root / "in")
                or path.suffix in (".db", ".sqlite")
            ):
                continue
            data = path.read_bytes()
            if data[:4] == b"PAR1":
                parquet = pyarrow.parquet.ParquetFile(io.BytesIO(data))
                yield path, repr(parquet.metadata.to_dict()) + repr(parquet.read().to_pylist())
            else:
                yield path, data.decode("utf-8", "replace")


def test_no_stored_object_has_a_byte_of_the_value(
    location: Location, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = location.root
    database = database_at(root / "db.sqlite", monkeypatch)
    execute(database.path, "CREATE TABLE users (user TEXT, seq BIGINT, country TEXT, _streamsem_version BIGINT)")
    shop = Shop(root, location)
    shop.run(0, ("anna", "u"), (PERSON, "u"))
    shop.run(1, ("ben", "u"), (PERSON, "d"), ("anna", "d"))
    shop.run(2, ("carl", "u"))
    assert {path.relative_to(root).parts[0] for path, text in shop.stored() if PERSON in text} >= {
        "log", "files", "delta", "iceberg", "appended", "staging",
    }  # fmt: skip
    preview = erase(shop.pipeline, where=f"user = '{PERSON}'", dry_run=True)
    done = erase(shop.pipeline, where=f"user = '{PERSON}'")
    assert _counts(preview) == _counts(done) == {"files": 2, "iceberg": 2, "appended": 2, "database": 2}
    assert (done.quarantined, done.tombstones, done.without_columns) == (2, 1, ())
    assert not any("objects of the log" in sentence for sentence in done.remaining)
    for name in ("delta", "appended"):
        DeltaTable(str(root / name)).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    left = [path.relative_to(root) for path, text in shop.stored() if PERSON in text]
    assert {path.parts[:2] for path in left} <= {("delta", "_delta_log"), ("appended", "_delta_log"), ("iceberg", "data"), ("iceberg", "metadata")}  # fmt: skip
    assert execute(database.path, "SELECT DISTINCT user FROM users ORDER BY user") == [("anna",), ("ben",), ("carl",)]
    assert verify(shop.pipeline).violations == []
    records = [record["raw"] for record in open_log(str(root / "log")).quarantined()]
    assert len(records) == 4
    shop.run(3, ("anna", "u"))
    assert verify(shop.pipeline).violations == []
    assert _counts(erase(shop.pipeline, where=f"user = '{PERSON}'")) == {}


def _counts(done: Erased) -> dict[str, int]:
    return {each.sink: each.rows for each in done.sinks}
