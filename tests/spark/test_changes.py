"""Pipelines whose sink applies change data: predicates, columns, tombstones in the log, and what fails before anything becomes visible."""

from __future__ import annotations

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import Changes, DeltaSink, FilesSource, Limits, Pipeline, run_batch, verify
from airflow_provider_streamsem.errors import ConflictError, DataError, InvalidError, PublishError
from airflow_provider_streamsem.pipeline.maintenance.fork import fork
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json
from tests.code_blocks import blocks

pytestmark = pytest.mark.spark

CHANGES = Changes(
    keys=["id"], sequence_by="seq", apply_as_deletes="op = 'd'", apply_as_truncates="op = 't'", except_column_list=["op"]
)  # fmt: skip
HISTORY = replace(CHANGES, apply_as_truncates=None, stored_as_scd_type=2)


class Shop:
    """A pipeline from files with changes to a Delta table. Each file is one batch."""

    def __init__(self, root: Path, **sink: Any) -> None:
        self.root, self.table = root, str(root / "table")
        (root / "in").mkdir()
        self.pipeline = Pipeline(
            name="shop",
            log=str(root / "log"),
            source=FilesSource(path=str(root / "in"), format="json", schema="op string, seq long, id long, v string"),
            sinks={"table": DeltaSink(self.table, **{"changes": CHANGES, **sink})},
            limits=Limits(max_files=1),
        )
        self.files = 0

    def arrive(self, *changes: tuple[str, int, int | None, str | None]) -> None:
        lines = [json.dumps(dict(zip(("op", "seq", "id", "v"), change, strict=True))) for change in changes]
        (self.root / "in" / f"{self.files:03}.json").write_text("\n".join(lines))
        self.files += 1

    def run(self, key: str = "all", **changes: Any) -> Any:
        return run_batch(self.pipeline.replace(**changes) if changes else self.pipeline, run_key=key, drain=True)

    def versions(self) -> list[tuple[Any, ...]]:
        """Return (id, value, begin, end) of each version in the table."""
        table = DeltaTable(self.table).to_pyarrow_table()
        assert table.schema.names == ["seq", "id", "v", "__START_AT", "__END_AT"]
        return sorted((row["id"], row["v"], row["__START_AT"], row["__END_AT"]) for row in table.to_pylist())

    def rows(self) -> list[tuple[Any, ...]]:
        table = DeltaTable(self.table).to_pyarrow_table()
        assert table.schema.names == ["seq", "id", "v"]
        return sorted((row["id"], row["v"]) for row in table.to_pylist())


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Shop:
    return Shop(tmp_path)


def test_changes_are_applied_in_the_order_of_their_sequence(shop: Shop) -> None:
    shop.arrive(("c", 2, 1, "new"), ("c", 1, 1, "old"), ("c", 1, 2, "b"), ("c", 5, 3, "c"))
    shop.arrive(("d", 6, 1, None), ("u", 4, 3, "late"), ("u", 7, 2, "b2"))
    shop.arrive(("u", 5, 1, "late"), (None, 8, 4, "no op"), ("d", 3, 2, None))  # type: ignore[arg-type]
    assert shop.run().batches == 3
    assert shop.rows() == [(2, "b2"), (3, "c"), (4, "no op")]
    shop.arrive(("t", 9, None, "ignored"), ("c", 10, 5, "after"))
    shop.arrive(("c", 8, 6, "before the truncate"), ("c", 9, 7, "with it"))
    shop.run("more")
    assert shop.rows() == [(5, "after"), (7, "with it")]
    assert verify(shop.pipeline.log).clean


def test_repeated_and_reordered_batches_give_the_same_table(shop: Shop) -> None:
    batches = [[("c", n, n % 3, f"{n}") for n in range(first, first + 4)] for first in (0, 4, 8)]
    batches.append([("d", 20, 1, None)])
    for batch in batches + batches[::-1] + [batch[::-1] for batch in batches]:
        shop.arrive(*batch)
    shop.run()
    assert shop.rows() == [(0, "9"), (2, "11")]


def test_tombstones_survive_vacuum_expiry_and_fork(
    shop: Shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shop.arrive(("c", 1, 1, "a"), ("c", 1, 2, "b"))
    shop.arrive(("d", 5, 1, None))
    for n in range(3):
        shop.arrive(("c", n, 10 + n, "other"))
    shop.run()
    vacuum(shop.pipeline, keep_versions=1, keep_days=0)
    assert [*(tmp_path / "log" / "state").rglob("tombstones-table.parquet")]
    shop.arrive(("u", 4, 1, "late"), ("u", 4, 2, "b2"))
    shop.run("late")
    assert [row for row in shop.rows() if row[0] < 10] == [(2, "b2")]
    forked = shop.pipeline.replace(log=str(tmp_path / "fork"), sinks={"table": DeltaSink(str(tmp_path / "copy"), changes=CHANGES)})  # fmt: skip
    fork(forked, shop.pipeline.log)
    assert "does not use all tombstones" not in caplog.text
    shop.arrive(("u", 3, 1, "late"), ("u", 3, 3, "c"))
    run_batch(forked, run_key="fork", drain=True)
    read = DeltaTable(str(tmp_path / "copy")).to_pyarrow_table().to_pylist()
    assert [(row["id"], row["v"]) for row in read] == [(3, "c")]
    assert verify(str(tmp_path / "fork")).clean
    renamed = forked.replace(log=str(tmp_path / "renamed"), sinks={"other": DeltaSink(str(tmp_path / "third"), changes=CHANGES)})  # fmt: skip
    fork(renamed, shop.pipeline.log)
    assert "sink table: the fork does not use all tombstones" in caplog.text


def test_null_of_an_update_keeps_the_value_if_nulls_are_ignored(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path, changes=replace(CHANGES, ignore_null_updates=True))
    shop.arrive(("c", 1, 1, "a"), ("u", 2, 1, None), ("c", 1, 2, "b"), ("u", 1, 3, None))
    shop.arrive(("u", 5, 2, None), ("u", 4, 2, "late"), ("d", 3, 1, None), ("u", 4, 1, None))
    shop.run()
    assert shop.rows() == [(1, None), (2, "late"), (3, None)]


def test_history_has_every_version_of_a_row(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path, changes=HISTORY)
    shop.arrive(("c", 1, 1, "a"), ("u", 4, 1, "c"), ("c", 1, 2, "b"))
    shop.arrive(("d", 5, 2, None), ("u", 3, 1, "b"))
    shop.arrive(("d", 2, 3, None), ("u", 6, 2, "again"))
    assert shop.run().batches == 3
    expected = [(1, "a", 1, 3), (1, "b", 3, 4), (1, "c", 4, None), (2, "again", 6, None), (2, "b", 1, 5)]
    assert shop.versions() == expected
    assert verify(shop.pipeline.log).clean
    spec = shop.pipeline.to_json()
    assert from_json(spec) == shop.pipeline
    assert spec["immutable_config"]["sinks"]["table"]["stored_as_scd_type"] == 2
    with pytest.raises(ConflictError, match="stored_as_scd_type"):
        shop.run("other", sinks={"table": DeltaSink(shop.table, changes=replace(CHANGES, apply_as_truncates=None))})


def test_columns_that_are_not_tracked_change_the_current_version(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path, changes=replace(HISTORY, track_history_except_column_list=["seq"]))
    shop.arrive(("c", 1, 1, "a"), ("u", 2, 1, "a"), ("u", 3, 1, "b"))
    shop.arrive(("u", 4, 1, "b"), ("u", 5, 1, "a"))
    shop.run()
    assert shop.versions() == [(1, "a", 1, 3), (1, "a", 5, None), (1, "b", 3, 5)]


def test_map_whose_history_is_tracked_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path, changes=replace(HISTORY, track_history_except_column_list=["seq"]))
    shop.arrive(("c", 1, 1, "a"))
    with pytest.raises(DataError, match=r"Spark does not compare.*columns=\['m'\]"):
        shop.run(transform=lambda frame: frame.withColumn("m", F.create_map(F.lit("k"), F.lit(1))))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"except_column_list": ["op"], "track_history_column_list": ["w"]}, r"does not return columns.*missing=\['w'\]"),
        ({}, r"columns with reserved names.*columns=\['__start_at'\]"),
    ],
)  # fmt: skip
def test_history_that_does_not_fit_the_rows_is_refused(
    tmp_path: Path, spark: SparkSession, changes: dict[str, Any], message: str
) -> None:
    shop = Shop(tmp_path, changes=replace(HISTORY, **changes))
    shop.arrive(("c", 1, 1, "a"))
    with pytest.raises(DataError, match=message):
        shop.run(transform=lambda frame: frame if changes else frame.withColumn("__start_at", F.lit(1)))


def test_columns_that_an_update_names_keep_their_values(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path, changes=replace(CHANGES, unchanged_columns="kept"))
    kept = F.expr("CASE WHEN v IS NULL THEN array('v', 'id', 'op') END")
    shop.arrive(("c", 1, 1, "a"), ("u", 2, 1, None), ("c", 1, 2, "b"))
    shop.arrive(("u", 5, 2, None), ("d", 3, 1, None))
    shop.run(transform=lambda frame: frame.withColumn("kept", kept))
    assert shop.rows() == [(2, "b")]
    shop.arrive(("u", 6, 3, None))
    with pytest.raises(PublishError, match="no values for columns of rows that are not in the table"):
        shop.run("unknown", transform=lambda frame: frame.withColumn("kept", kept))


def test_update_that_names_a_column_that_the_transform_renames_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path, changes=replace(CHANGES, unchanged_columns="kept"))
    kept = F.expr("CASE WHEN v IS NULL THEN array('v') END")
    shop.arrive(("c", 1, 1, "a"), ("u", 2, 1, None))
    with pytest.raises(DataError, match=r"names an unchanged column that the rows lack.*column='kept'"):
        shop.run(transform=lambda frame: frame.withColumn("kept", kept).withColumnRenamed("v", "w"))


def test_spec_in_json_has_the_changes(shop: Shop) -> None:
    spec = shop.pipeline.to_json()
    assert spec["sinks"]["table"]["changes"]["sequence_by"] == ["seq"]
    assert from_json(spec) == shop.pipeline
    assert spec["guarantee"]["conditions"] == "unchanged files, tombstones 168 h"
    assert spec["immutable_config"]["sinks"]["table"] == {
        "type": "delta", "path": shop.table, "partition_by": [], "mode": "upsert", "keys": ["id"], "sequence_by": ["seq"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sequence_by": "at"}, r"does not return columns that changes names.*missing=\['at'\]"),
        ({"except_column_list": ["op", "more"]}, r"does not return columns that changes names.*missing=\['more'\]"),
        ({"apply_as_deletes": "kind = 'd'"}, r"cannot evaluate apply_as_deletes.*apply_as_deletes=.*UNRESOLVED_COLUMN"),
    ],
)  # fmt: skip
def test_changes_that_do_not_fit_the_rows_are_refused_before_the_commit(
    tmp_path: Path, spark: SparkSession, changes: dict[str, Any], message: str
) -> None:
    shop = Shop(tmp_path, changes=Changes(**{"keys": ["id"], "sequence_by": "seq", **changes}))
    shop.arrive(("c", 1, 1, "a"))
    with pytest.raises(DataError, match=message):
        shop.run()
    good = shop.pipeline.replace(sinks={"table": DeltaSink(shop.table, changes=CHANGES)})
    if "sequence_by" not in changes:  # it cannot change while the log is in use
        assert run_batch(good, run_key="all").version == 0


def test_delete_with_a_key_only_is_applied_to_a_table_with_other_columns(tmp_path: Path, spark: SparkSession) -> None:
    shop = Shop(tmp_path)
    shop.arrive(("c", 1, 1, "a"), ("c", 1, 2, "b"))
    shop.arrive(("d", 2, 1, None))
    shop.run()
    assert shop.rows() == [(2, "b")]


def test_different_changes_with_one_key_and_sequence_are_refused_if_their_order_is_unknown(shop: Shop) -> None:
    shop.arrive(("c", 1, 1, "a"), ("d", 1, 1, None))
    with pytest.raises(DataError, match="equal keys and equal sequence_by columns"):
        shop.run(transform=lambda frame: frame.repartition(3))
    assert shop.run().batches == 1
    assert shop.rows() == []


def test_reprocessing_is_refused(shop: Shop) -> None:
    from airflow_provider_streamsem import reprocess

    shop.arrive(("c", 1, 1, "a"))
    shop.run()
    with pytest.raises(InvalidError, match="cannot"):
        reprocess(shop.pipeline, 0, run_key="again")


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "change-data.md"


@pytest.mark.parametrize("files", [1, 3])
def test_examples_of_the_page_give_the_tables_that_the_page_names(
    tmp_path: Path, spark: SparkSession, files: int
) -> None:
    code, (toml,), page = blocks(PAGE, "python"), blocks(PAGE, "toml"), PAGE.read_text()
    names: dict[str, Any] = {}
    exec(code[0].partition("\nwith DAG")[0], names)
    exec(code[1], names)
    arguments = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(toml)
    assert Changes(**arguments["sinks"]["customers"]["changes"]) == names["CUSTOMERS"].sinks["customers"].changes
    (tmp_path / "in").mkdir()
    records = [dict(zip(("op", "seq", "id", "name"), row, strict=True)) for row in rows_of(page, "| op | seq |")]
    for at in range(files):
        lines = [json.dumps(record) for record in records[at::files]]
        (tmp_path / "in" / f"{at}.json").write_text("\n".join(lines) + "\n{}\n")

    def table(example: str) -> list[dict[str, Any]]:
        pipeline = names[example]
        source = FilesSource(path=str(tmp_path / "in"), format="json", schema=pipeline.source.value.schema)
        sink = DeltaSink(str(tmp_path / example / "table"), changes=pipeline.sinks["customers"].changes)
        local = {"log": str(tmp_path / example / "log"), "source": source, "limits": Limits(max_files=1)}
        run_batch(pipeline.replace(**local, sinks={"customers": sink}), run_key="all", drain=True)
        rows: list[dict[str, Any]] = DeltaTable(sink.path).to_pyarrow_table().to_pylist()
        return rows

    assert table("CUSTOMERS") == [{"id": 7, "seq": 3, "name": "Ann Lee"}]
    assert "`id` 7, `seq` 3, `name` Ann Lee" in page
    versions = [
        {"id": int(id), "seq": int(seq), "name": name, "__START_AT": int(start), "__END_AT": int(end) if end else None}
        for id, seq, name, start, end in cells_of(page, "| id | seq | name | __START_AT |")
    ]
    assert sorted(table("CUSTOMER_HISTORY"), key=lambda row: (row["id"], row["seq"])) == versions


def test_example_of_several_tables_in_the_page_keeps_each_table(tmp_path: Path, spark: SparkSession) -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    exec(blocks(PAGE, "python")[3], names)
    shop, tables = names["SHOP"], names["TABLES"]
    event = "debezium_op string, debezium_sequence decimal(38,0), debezium_unchanged array<string>"
    changes: dict[str, list[dict[str, Any]]] = {
        "customers": [{"id": 1, "name": "Ann"}, {"id": 1, "name": "Ann Lee"}, {"id": 2, "name": "Bo"}, {"id": 2, "debezium_op": "d"}],
        "orders": [{"id": 1, "customer": 1, "amount": 1.25}, {"id": 2, "customer": 1, "debezium_unchanged": ["amount"]}],
    }  # fmt: skip
    changes["orders"].insert(1, {"id": 2, "customer": 2, "amount": 2.5})
    for table, events in changes.items():
        (tmp_path / table).mkdir()
        lines = [json.dumps({"debezium_op": "u", "debezium_sequence": at, **each}) for at, each in enumerate(events)]
        (tmp_path / table / "events.json").write_text("\n".join(lines))
    pipeline = shop.replace(
        log=str(tmp_path / "log"),
        sources={table: FilesSource(path=str(tmp_path / table), format="json", schema=f"{columns}, {event}", hive_partitions=False) for table, columns in tables.items()},
        sinks={table: DeltaSink(str(tmp_path / "out" / table), changes=shop.sinks[table].changes) for table in tables},
    )  # fmt: skip
    run_batch(pipeline, run_key="all", drain=True)
    found = {table: DeltaTable(str(tmp_path / "out" / table)).to_pyarrow_table().to_pylist() for table in tables}
    assert [(row["id"], row["name"]) for row in found["customers"]] == [(1, "Ann Lee")]
    orders = sorted((row["id"], row["customer"], float(row["amount"])) for row in found["orders"])
    assert orders == [(1, 1, 1.25), (2, 1, 2.5)]
    assert verify(pipeline.log).violations == []


def test_example_of_debezium_in_the_page_has_the_stated_guarantee() -> None:
    names: dict[str, Any] = {}
    exec(blocks(PAGE, "python")[2], names)
    invoices = names["INVOICES"]
    assert from_json(invoices.to_json()) == invoices
    assert invoices.to_json()["guarantee"]["conditions"] == "tombstones 168 h"


def cells_of(page: str, head: str) -> list[list[str]]:
    """Return the rows of a table of a page."""
    lines = page[page.index(head) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def rows_of(page: str, head: str) -> list[list[Any]]:
    return [[op, int(seq), int(id), name or None] for op, seq, id, name in cells_of(page, head)]
