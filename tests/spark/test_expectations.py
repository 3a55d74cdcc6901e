"""Expectations on Spark: rules for the records of a pipeline and for the rows of its sinks, counted, dropped, quarantined or refused in the pass that writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    Changes,
    Contract,
    Dedup,
    DeltaSink,
    Expect,
    FilesSink,
    FilesSource,
    Limits,
    Pipeline,
    open_log,
    read_committed,
    reprocess,
    run_batch,
    verify,
)
from airflow_provider_streamsem.errors import DataError

pytestmark = pytest.mark.spark

ROWS: list[Any] = [
    {"id": 1, "user": "a", "amount": 5},
    {"id": 2, "user": None, "amount": 7},
    {"id": 3, "user": "c", "amount": -1},
    {"id": 4, "user": None, "amount": -2},
    {"id": 5, "user": "e", "amount": None},
    "no record",
]
"""``amount > 0`` is false for 3 and 4, and null for 5. ``user IS NOT NULL`` is false for 2 and 4."""
NAMED, POSITIVE = "user is known", "amount > 0, always"
BROKEN = {2: [NAMED], 3: [POSITIVE], 4: [NAMED, POSITIVE], 5: [POSITIVE]}


def lines(rows: Sequence[Any]) -> str:
    return "\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n"


def orders(root: Path, records: Sequence[Any] = ROWS, **arguments: Any) -> Pipeline:
    """A pipeline from JSON files to a files sink ``out``, with other arguments of :class:`Pipeline`."""
    (root / "in").mkdir(parents=True, exist_ok=True)
    (root / "in" / "1.json").write_text(lines(records))
    source = FilesSource(path=str(root / "in"), format="json", schema="id long, user string, amount long")
    sinks = arguments.pop("sinks", None) or {"out": FilesSink(path=str(root / "out"))}
    return Pipeline(name="orders", log=str(root / "log"), source=source, sinks=sinks, **arguments)


def ids(spark: SparkSession, pipeline: Pipeline, sink: str = "out") -> list[int]:
    return sorted(row.id for row in read_committed(spark, pipeline.log, sink=sink).collect())


def counts(pipeline: Pipeline) -> Mapping[str, int]:
    outcome = open_log(pipeline.log).log.outcome(open_log(pipeline.log).head)
    assert outcome is not None
    return outcome.counts


def quarantined(pipeline: Pipeline) -> list[dict[str, Any]]:
    return list(open_log(pipeline.log).quarantined())


def rules(named: str, positive: str) -> dict[str, Expect]:
    return {NAMED: Expect("user IS NOT NULL", on_failure=named), POSITIVE: Expect("amount > 0", on_failure=positive)}


@pytest.mark.parametrize(
    ("named", "positive", "kept", "dropped", "stored"),
    [
        ("warn", "warn", [1, 2, 3, 4, 5], 0, []),
        ("drop", "warn", [1, 3, 5], 2, []),
        ("drop", "drop", [1], 4, []),
        ("quarantine", "warn", [1, 3, 5], 0, [2, 4]),
        ("drop", "quarantine", [1], 1, [3, 4, 5]),
        ("quarantine", "quarantine", [1], 0, [2, 3, 4, 5]),
    ],
)
@pytest.mark.parametrize("of_sink", [False, True], ids=["records", "rows of a sink"])
def test_each_action_applies_to_false_and_null_and_the_counts_add_up(
    spark: SparkSession,
    tmp_path: Path,
    named: str,
    positive: str,
    kept: list[int],
    dropped: int,
    stored: list[int],
    of_sink: bool,
) -> None:
    expect = rules(named, positive)
    sinks = {"out": FilesSink(path=str(tmp_path / "out"), expect=expect if of_sink else {})}
    pipeline = orders(tmp_path, sinks=sinks, expect={} if of_sink else expect, rows="filter")
    run_batch(pipeline, run_key="a")
    assert ids(spark, pipeline) == kept
    found = counts(pipeline)
    assert found["read"] == len(ROWS) == found["parsed"] + found["quarantined"]
    assert found["written.out"] == len(kept)
    names = ("failed_rows.out.", "dropped_rows.out") if of_sink else ("failed_records.", "dropped")
    assert {name: found[f"{names[0]}{name}"] for name in expect} == {NAMED: 2, POSITIVE: 3}
    assert found[names[1]] == dropped
    assert found["quarantined_rows.out"] == len(stored) if of_sink else found["quarantined"] == len(stored) + 1
    records = [record for record in quarantined(pipeline) if "rules" in record]
    assert {json.loads(record["raw"])["id"]: record["rules"] for record in records} == {id: BROKEN[id] for id in stored}
    assert {record.get("sink") for record in records} <= {"out" if of_sink else None}
    assert verify(pipeline.log).violations == []


@pytest.mark.parametrize("of_sink", [False, True], ids=["records", "rows of a sink"])
def test_rule_that_fails_makes_nothing_visible_and_names_the_rule_without_values(
    spark: SparkSession, tmp_path: Path, of_sink: bool
) -> None:
    expect = rules("warn", "fail")
    sinks = {"out": FilesSink(path=str(tmp_path / "out"), expect=expect if of_sink else {})}
    pipeline = orders(tmp_path, sinks=sinks, expect={} if of_sink else expect)
    with pytest.raises(DataError, match=r"on_failure='fail'.*amount > 0, always") as caught:
        run_batch(pipeline, run_key="a")
    assert caught.value.retryable is False
    assert "-1" not in str(caught.value)
    assert open_log(pipeline.log).head == -1
    corrected = pipeline.replace(expect={}, sinks={"out": FilesSink(path=str(tmp_path / "out"))})
    run_batch(corrected, run_key="a")
    assert ids(spark, corrected) == [1, 2, 3, 4, 5]


def test_records_that_where_drops_are_not_judged(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = orders(tmp_path, where="amount > 0", expect=rules("drop", "fail"), rows="filter")
    run_batch(pipeline, run_key="a")
    assert ids(spark, pipeline) == [1]
    assert counts(pipeline)[f"failed_records.{POSITIVE}"] == 0
    assert counts(pipeline)["filtered"] == 3


def test_id_of_a_dropped_record_is_not_recorded_so_that_a_corrected_record_is_accepted(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = orders(tmp_path, dedup=Dedup(keys=["id"], ttl_s=3600), expect=rules("warn", "quarantine"))
    run_batch(pipeline, run_key="a")
    (tmp_path / "in" / "2.json").write_text(lines([{"id": 3, "user": "c", "amount": 1}, {"id": 1, "amount": 9}]))
    run_batch(pipeline, run_key="b")
    assert ids(spark, pipeline) == [1, 2, 3]


def test_reprocessing_after_a_rule_was_corrected_reads_the_quarantined_records_again(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = orders(tmp_path, expect=rules("warn", "quarantine"))
    run_batch(pipeline, run_key="a")
    assert ids(spark, pipeline) == [1, 2]
    corrected = pipeline.replace(expect={POSITIVE: Expect("amount > -2", on_failure="quarantine")})
    reprocess(corrected, 0)
    assert ids(spark, corrected) == [1, 2, 3]
    assert [record.get("rules") for record in quarantined(corrected)] == [None, [POSITIVE], [POSITIVE]]


def test_quarantined_rows_count_towards_the_limit(tmp_path: Path) -> None:
    pipeline = orders(tmp_path, expect=rules("warn", "quarantine"), limits=Limits(max_quarantined=3))
    with pytest.raises(DataError, match=r"cannot_be_parsed=1, break_a_rule=3, allowed=3"):
        run_batch(pipeline, run_key="a")


def test_each_sink_has_its_own_rules_and_random_values_reach_one_of_kept_and_quarantined(
    spark: SparkSession, tmp_path: Path
) -> None:
    rows = [{"id": id, "user": "u", "amount": id} for id in range(2_000)]
    sinks = {
        "half": FilesSink(path=str(tmp_path / "half"), expect={"half": Expect("chance < 0.5", on_failure="quarantine")}),
        "all": FilesSink(path=str(tmp_path / "all"), expect={"half": Expect("rand() < 0.5")}),
    }  # fmt: skip
    pipeline = orders(tmp_path, rows, sinks=sinks, transform=lambda frame: frame.withColumn("chance", F.rand()))
    run_batch(pipeline, run_key="a")
    lost = {json.loads(record["raw"])["id"] for record in quarantined(pipeline)}
    assert {*ids(spark, pipeline, "half")} | lost == {*range(2_000)}
    assert not {*ids(spark, pipeline, "half")} & lost
    assert 0 < len(lost) == counts(pipeline)["failed_rows.half.half"] < 2_000
    assert ids(spark, pipeline, "all") == [*range(2_000)]


def test_random_rule_keeps_or_quarantines_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    rows = [{"id": id, "user": "u", "amount": id} for id in range(2_000)]
    expect = {"half": Expect("rand() < 0.5", on_failure="quarantine")}
    pipeline = orders(tmp_path, rows, expect=expect, transform=lambda frame: frame.repartition(3))
    run_batch(pipeline, run_key="a")
    lost = {json.loads(record["raw"])["id"] for record in quarantined(pipeline)}
    kept = ids(spark, pipeline)
    assert sorted([*kept, *lost]) == [*range(2_000)]
    assert counts(pipeline)["failed_records.half"] == counts(pipeline)["quarantined"] == len(lost) > 0


@pytest.mark.parametrize(
    ("predicate", "condition"),
    [("total > 0", "UNRESOLVED_COLUMN"), ("amount", "DATATYPE_MISMATCH"), ("amount >", "PARSE_SYNTAX"), ("sum(amount) > 0", "")],
)  # fmt: skip
@pytest.mark.parametrize("of_sink", [False, True], ids=["records", "rows of a sink"])
def test_predicate_that_spark_cannot_evaluate_is_named(
    tmp_path: Path, predicate: str, condition: str, of_sink: bool
) -> None:
    expect = {NAMED: Expect("user IS NOT NULL"), "wrong": Expect(predicate)}
    sinks = {"out": FilesSink(path=str(tmp_path / "out"), expect=expect if of_sink else {})}
    pipeline = orders(tmp_path, sinks=sinks, expect={} if of_sink else expect)
    with pytest.raises(DataError, match=rf"rule='wrong'.*{condition}"):
        run_batch(pipeline, run_key="a")
    assert open_log(pipeline.log).head == -1


def test_delete_of_a_change_feed_is_not_judged(tmp_path: Path) -> None:
    changes = Changes(keys=["id"], sequence_by="seq", apply_as_deletes="gone", except_column_list=["gone"])
    expect = {"has a user": Expect("user IS NOT NULL", on_failure="drop")}
    sinks = {"out": DeltaSink(str(tmp_path / "table"), changes=changes, expect=expect)}
    (tmp_path / "in").mkdir()
    source = FilesSource(
        path=str(tmp_path / "in"), format="json", schema="id long, user string, seq long, gone boolean"
    )
    pipeline = Pipeline(name="changed", log=str(tmp_path / "log"), source=source, sinks=sinks)
    first = [{"id": 1, "user": "a", "seq": 1}, {"id": 2, "user": "b", "seq": 1}, {"id": 3, "seq": 1}]
    (tmp_path / "in" / "1.json").write_text(lines(first))
    run_batch(pipeline, run_key="a")
    (tmp_path / "in" / "2.json").write_text(lines([{"id": 1, "seq": 2, "gone": True}, {"id": 2, "seq": 2}]))
    run_batch(pipeline, run_key="b")
    table = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist()
    assert [(row["id"], row["user"]) for row in table] == [(2, "b")]
    assert counts(pipeline)["failed_rows.out.has a user"] == 1


def test_rows_that_a_contract_discards_are_judged_once(spark: SparkSession, tmp_path: Path) -> None:
    expect = {"positive": Expect("amount > 0", on_failure="drop")}
    sink = FilesSink(path=str(tmp_path / "out"), contract=Contract(columns="discard_row"), expect=expect)
    pipeline = orders(tmp_path, sinks={"out": sink}, rows="filter")
    run_batch(pipeline, run_key="a")
    (tmp_path / "in" / "2.json").write_text(lines([{"id": 6, "amount": 1}, {"id": 7, "amount": 2}, {"id": 8}]))
    run_batch(pipeline.replace(transform=_with_new_column), run_key="b")
    assert ids(spark, pipeline) == [1, 2, 7]
    assert (counts(pipeline)["discarded_rows.out"], counts(pipeline)["dropped_rows.out"]) == (1, 1)


def _with_new_column(frame: Any) -> Any:
    return frame.withColumn("new", F.when(F.col("id") == 6, F.lit("x")))


def test_sixty_rules_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    expect = {f"rule {n}": Expect(f"amount <> {n}", on_failure="drop") for n in range(60)}
    pipeline = orders(tmp_path, [{"id": n, "amount": n} for n in range(70)], expect=expect)
    run_batch(pipeline, run_key="a")
    assert ids(spark, pipeline) == [*range(60, 70)]
    assert all(counts(pipeline)[f"failed_records.rule {n}"] == 1 for n in range(60))
