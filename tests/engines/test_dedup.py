"""Dedup on Spark: the same answers as one pass over all records, whatever the batches, layers and buckets."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import FilesSink, FilesSource, Limits, Pipeline, read_committed, redo, run_batch, verify
from airflow_provider_streamsem.engines import dedup as rules
from airflow_provider_streamsem.engines.dedup import Dedup
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.readers.files import open_log

pytestmark = pytest.mark.spark

SCHEMA = "shop string, id long, day date, n long, `odd.name` string"


def write(root: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (root / "in").mkdir(exist_ok=True)
    (root / "in" / f"{name}.json").write_text("".join(json.dumps(row) + "\n" for row in rows))


def pipeline_in(root: Path, **changes: Any) -> Pipeline:
    spec = Pipeline(
        name="p", log=str(root / "log"), source=FilesSource(path=str(root / "in"), format="json", schema=SCHEMA),
        sinks={"out": FilesSink(str(root / "out"))}, limits=Limits(max_files=1), dedup=Dedup(keys=["shop", "id"], ttl_s=3600), rows="filter",
    )  # fmt: skip
    return spec.replace(**changes) if changes else spec


def ids(spark: SparkSession, root: Path) -> Counter[tuple[Any, ...]]:
    return Counter((row["shop"], row["id"]) for row in read_committed(spark, str(root / "log")).collect())


@pytest.mark.parametrize("bucketed_rows", [20, 1_000_000])
def test_each_id_passes_once_over_many_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bucketed_rows: int
) -> None:
    monkeypatch.setattr(rules, "BUCKETED_ROWS", bucketed_rows)
    for batch in range(5):
        numbers = range(batch * 10, batch * 10 + 20)
        rows = [{"shop": f"s{n % 3}", "id": n, "day": "2024-01-01", "n": batch} for n in numbers]
        write(tmp_path, f"{batch}", [*rows, *rows[:3]])
    result = run_batch(pipeline_in(tmp_path), run_key="all", drain=True)
    assert ids(spark, tmp_path) == Counter({(f"s{n % 3}", n): 1 for n in range(60)})
    assert (result.counts["read"], result.counts["duplicates"], result.counts["written.out"]) == (115, 55, 60)
    assert verify(str(tmp_path / "log")).clean
    outcome = open_log(str(tmp_path / "log")).log.outcome(4)
    assert outcome is not None
    layers = outcome[0].state["dedup"]
    assert sum(layer["rows"] for layer in layers) == 60
    cut = {len(layer["files"]) > 1 for layer in layers if layer["rows"] >= bucketed_rows}
    assert cut <= {True}


def test_record_without_a_key_always_passes_and_is_counted(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"shop": None, "id": 1}, {"shop": "a", "id": None}, {"shop": "", "id": 1}]
    for batch in range(2):
        write(tmp_path, f"{batch}", rows + rows)
    result = run_batch(pipeline_in(tmp_path), run_key="all", drain=True)
    assert ids(spark, tmp_path) == Counter({(None, 1): 4, ("a", None): 4, ("", 1): 1})
    assert (result.counts["without_id"], result.counts["duplicates"]) == (8, 3)


def test_values_of_several_keys_are_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "0", [{"shop": "1:2", "id": 3}, {"shop": "1", "id": 23}, {"shop": "12", "id": 3}])
    run_batch(pipeline_in(tmp_path), run_key="all")
    assert sum(ids(spark, tmp_path).values()) == 3


def test_redo_lets_pass_what_passed(spark: SparkSession, tmp_path: Path) -> None:
    for batch in range(3):
        write(tmp_path, f"{batch}", [{"shop": "a", "id": n, "n": batch} for n in range(batch, batch + 3)])
    run_batch(pipeline_in(tmp_path), run_key="all", drain=True)
    before = ids(spark, tmp_path)
    redo(pipeline_in(tmp_path), 1)
    assert ids(spark, tmp_path) == before == Counter({("a", n): 1 for n in range(5)})
    write(tmp_path, "9", [{"shop": "a", "id": n, "n": 9} for n in range(5)])
    assert run_batch(pipeline_in(tmp_path), run_key="more").counts["duplicates"] == 5


def test_transform_and_predicate_see_only_what_passed(spark: SparkSession, tmp_path: Path) -> None:
    for batch in range(2):
        write(tmp_path, f"{batch}", [{"shop": "a", "id": n, "n": n} for n in range(6)])
    pipeline = pipeline_in(
        tmp_path, where="n < 4", transform=lambda frame: frame.selectExpr("shop", "id", "n * 2 as n")
    )
    result = run_batch(pipeline, run_key="all", drain=True)
    assert (result.counts["parsed"], result.counts["filtered"], result.counts["duplicates"]) == (12, 4, 4)
    assert result.counts["written.out"] == 4


def test_key_without_one_form_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "0", [{"shop": "a", "id": 1}])
    source = FilesSource(path=str(tmp_path / "in"), format="json", schema="shop string, id double")
    with pytest.raises(DataError, match="no one form"):
        run_batch(pipeline_in(tmp_path, source=source), run_key="all")
    with pytest.raises(DataError, match="lack columns"):
        run_batch(
            pipeline_in(tmp_path, dedup=Dedup(keys=["other"], ttl_s=5)).replace(
                log=str(tmp_path / "log2"), sinks={"out": FilesSink(str(tmp_path / "out2"))}
            ),
            run_key="all",
        )
