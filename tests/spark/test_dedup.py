"""Dedup on Spark: the same results as one pass over all records, for any batches and layers."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import (
    FilesSink,
    FilesSource,
    Limits,
    Pipeline,
    read_committed,
    reprocess,
    run_batch,
    verify,
)
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.spark import duplicates
from airflow_provider_streamsem.testing.clock import ManualClock

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


def test_batch_scoped_dedup_drops_duplicates_within_a_batch_and_keeps_no_state(
    spark: SparkSession, tmp_path: Path
) -> None:
    for batch in range(2):
        rows = [{"shop": "s", "id": n, "day": "2024-01-01", "n": batch} for n in (1, 2, 2, None, None)]
        write(tmp_path, f"{batch}", rows)
    pipeline = pipeline_in(tmp_path, dedup=Dedup(keys=["shop", "id"], scope="batch"))
    result = run_batch(pipeline, run_key="all", drain=True)
    assert ids(spark, tmp_path) == Counter({("s", 1): 2, ("s", 2): 2, ("s", None): 4})
    assert (result.counts["read"], result.counts["duplicates"]) == (10, 2)
    outcome = open_log(str(tmp_path / "log")).log.outcome(1)
    assert outcome is not None
    assert not outcome.state


@pytest.mark.parametrize("sent", [True, pytest.param(False, marks=pytest.mark.prove)])
def test_each_id_is_written_once_over_many_batches(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: bool
) -> None:
    monkeypatch.setattr(duplicates, "_MAX_BROADCAST_ROWS", 500_000 if sent else 0)
    for batch in range(3):
        numbers = range(batch * 10, batch * 10 + 20)
        rows = [{"shop": f"s{n % 3}", "id": n, "day": "2024-01-01", "n": batch} for n in numbers]
        write(tmp_path, f"{batch}", [*rows, *rows[:3]])
    result = run_batch(pipeline_in(tmp_path), run_key="all", drain=True)
    assert ids(spark, tmp_path) == Counter({(f"s{n % 3}", n): 1 for n in range(40)})
    assert (result.counts["read"], result.counts["duplicates"], result.counts["written.out"]) == (69, 29, 40)
    assert verify(str(tmp_path / "log")).clean
    outcome = open_log(str(tmp_path / "log")).log.outcome(2)
    assert outcome is not None
    assert sum(layer["rows"] for layer in outcome.state["dedup"]) == 40


def test_duplicate_after_its_ttl_is_written_and_counted_while_its_id_is_still_stored(
    spark: SparkSession, tmp_path: Path
) -> None:
    clock = ManualClock()
    log = commit_log_at(str(tmp_path / "log"), clock=clock)
    late = []
    for batch, (id, seconds) in enumerate([(1, 0), (2, 50), (1, 20), (1, 30)]):
        clock.sleep(seconds)
        write(tmp_path, f"{batch}", [{"shop": "a", "id": id}])
        counts = run_batch(
            pipeline_in(tmp_path, dedup=Dedup(keys=["id"], ttl_s=60)), run_key=f"{batch}", log=log
        ).counts
        late.append((counts["late_duplicates"], counts["duplicates"]))
    assert late == [(0, 0), (0, 0), (1, 0), (0, 1)]
    assert ids(spark, tmp_path) == Counter({("a", 1): 2, ("a", 2): 1})


def test_record_with_a_null_key_is_always_written_and_counted(spark: SparkSession, tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"shop": None, "id": 1}, {"shop": "a", "id": None}, {"shop": "", "id": 1}]
    for batch in range(2):
        write(tmp_path, f"{batch}", rows + rows)
    result = run_batch(pipeline_in(tmp_path), run_key="all", drain=True)
    assert ids(spark, tmp_path) == Counter({(None, 1): 4, ("a", None): 4, ("", 1): 1})
    assert (result.counts["without_id"], result.counts["duplicates"]) == (8, 3)


def test_values_of_several_keys_are_distinguished(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "0", [{"shop": "1:2", "id": 3}, {"shop": "1", "id": 23}, {"shop": "12", "id": 3}])
    run_batch(pipeline_in(tmp_path), run_key="all")
    assert sum(ids(spark, tmp_path).values()) == 3


def test_id_is_unchanged_after_its_column_was_widened(spark: SparkSession, tmp_path: Path) -> None:
    values = ["5", "-1.5", "0", "1234567.89", "100"]
    for batch in range(4):
        (tmp_path / "in").mkdir(exist_ok=True)
        (tmp_path / "in" / f"{batch}.json").write_text("".join(f'{{"id": {value}}}\n' for value in values))
    passed = []
    for type in ("decimal(10,2)", "decimal(12,4)", "decimal(38,10)", "decimal(38,10)"):
        source = FilesSource(path=str(tmp_path / "in"), format="json", schema=f"id {type}")
        result = run_batch(
            pipeline_in(tmp_path, source=source, dedup=Dedup(keys=["id"], ttl_s=3600)), run_key=f"r{len(passed)}"
        )
        passed.append(result.counts["written.out"])
    assert passed == [5, 0, 0, 0]
    integers = spark.sql(
        "SELECT CAST(5 AS DECIMAL(9,2)) a, 5L b, CAST(1e-10 AS DECIMAL(20,10)) c, CAST(0 AS DECIMAL(38,38)) d, CAST(-10 AS DECIMAL(9,0)) e"
    )
    texts = integers.selectExpr(*[duplicates._text(f.name, f.dataType) for f in integers.schema.fields]).first()
    assert tuple(texts or ()) == ("5", "5", "0.0000000001", "0", "-10")


@pytest.mark.prove
def test_reprocessing_writes_the_same_records_again(spark: SparkSession, tmp_path: Path) -> None:
    for batch in range(3):
        write(tmp_path, f"{batch}", [{"shop": "a", "id": n, "n": batch} for n in range(batch, batch + 3)])
    run_batch(pipeline_in(tmp_path), run_key="all", drain=True)
    before = ids(spark, tmp_path)
    reprocess(pipeline_in(tmp_path), 1)
    assert ids(spark, tmp_path) == before == Counter({("a", n): 1 for n in range(5)})
    write(tmp_path, "9", [{"shop": "a", "id": n, "n": 9} for n in range(5)])
    assert run_batch(pipeline_in(tmp_path), run_key="more").counts["duplicates"] == 5


@pytest.mark.prove
def test_reprocessing_with_other_records_keeps_each_id_once(spark: SparkSession, tmp_path: Path) -> None:
    """The predicate selects the records here. A fix of the source's options, after which more records are parsed, has the same effect."""

    def run(run_key: str, where: str) -> dict[str, int]:
        return dict(run_batch(pipeline_in(tmp_path, where=where), run_key=run_key).counts)

    write(tmp_path, "0", [{"shop": "a", "id": id, "n": n} for id, n in ((7, 0), (8, 1), (5, 0))])
    run("first", "n = 1")  # writes 8
    write(tmp_path, "1", [{"shop": "a", "id": 5, "n": 1}])
    run("second", "n = 1")
    reprocess(pipeline_in(tmp_path, where="n = 0"), 0)  # writes 7 and not 8, and a later version wrote 5
    assert ids(spark, tmp_path) == Counter({("a", 7): 1, ("a", 5): 1})
    write(tmp_path, "2", [{"shop": "a", "id": id, "n": 0} for id in (7, 8, 5)])
    assert run("redelivery", "n = 0")["duplicates"] == 2
    assert ids(spark, tmp_path) == Counter({("a", n): 1 for n in (5, 7, 8)})
    reprocess(pipeline_in(tmp_path, where="n = 1"), 0)  # the redelivery wrote 8
    assert ids(spark, tmp_path) == Counter({("a", n): 1 for n in (5, 8)})
    reprocess(pipeline_in(tmp_path, where="n = 0"), 0)
    assert ids(spark, tmp_path) == Counter({("a", n): 1 for n in (5, 7, 8)})


def test_transform_and_predicate_get_only_deduplicated_records(spark: SparkSession, tmp_path: Path) -> None:
    for batch in range(2):
        write(tmp_path, f"{batch}", [{"shop": "a", "id": n, "n": n} for n in range(6)])
    pipeline = pipeline_in(
        tmp_path, where="n < 4", transform=lambda frame: frame.selectExpr("shop", "id", "n * 2 as n")
    )
    result = run_batch(pipeline, run_key="all", drain=True)
    assert (result.counts["parsed"], result.counts["filtered"], result.counts["duplicates"]) == (12, 4, 4)
    assert result.counts["written.out"] == 4


def test_key_column_without_one_canonical_form_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path, "0", [{"shop": "a", "id": 1}])
    source = FilesSource(path=str(tmp_path / "in"), format="json", schema="shop string, id double")
    with pytest.raises(DataError, match="does not accept key columns of these types"):
        run_batch(pipeline_in(tmp_path, source=source), run_key="all")
    with pytest.raises(DataError, match="lack key columns"):
        run_batch(
            pipeline_in(tmp_path, dedup=Dedup(keys=["other"], ttl_s=5)).replace(
                log=str(tmp_path / "log2"), sinks={"out": FilesSink(str(tmp_path / "out2"))}
            ),
            run_key="all",
        )


@pytest.mark.parametrize("bound", [{"ttl_s": 10**10}, {"rows": 100}], ids=str)
def test_reprocessing_of_one_version_after_another_keeps_each_id_once(
    spark: SparkSession, tmp_path: Path, bound: dict[str, int]
) -> None:
    """The clock that planned version 0 is a day ahead. Its reprocessing removes id 2 and adds id 3, which version 1 has too."""
    pipeline = pipeline_in(tmp_path, dedup=Dedup(keys=["id"], **bound))
    for number, (ahead_s, where) in enumerate([(86_400, "id IN (1, 2)"), (0, "id IN (1, 2, 4)")]):
        clock = ManualClock()
        clock.sleep(ahead_s)
        write(tmp_path, f"{number}", [{"shop": "a", "id": n} for n in (1, 2, 3, 4)[: 3 + number]])
        log = commit_log_at(str(tmp_path / "log"), clock=clock)
        run_batch(pipeline.replace(where=where), run_key=f"{number}", log=log)
    reprocess(pipeline.replace(where="id IN (1, 3)"), 0)
    reprocess(pipeline, 1)
    assert ids(spark, tmp_path) == Counter({("a", n): 1 for n in (1, 2, 3, 4)})
