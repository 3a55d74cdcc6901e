"""Several sources in one pipeline: each source has its own ranges and offsets, and one transform gets the records of all."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem import (
    Dedup,
    FilesSink,
    FilesSource,
    KafkaSource,
    Limits,
    Pipeline,
    RateSource,
    State,
    alter,
    guarantee,
    read_committed,
    reprocess,
    run_batch,
    verify,
)
from airflow_provider_streamsem.commitlog.log import commit_log_at
from airflow_provider_streamsem.connectors.data_files.pins import FilePin
from airflow_provider_streamsem.errors import (
    ConflictError,
    DataError,
    InvalidError,
    LogDamagedError,
    RecordsMissingError,
    SourceChangedError,
    StageError,
)
from airflow_provider_streamsem.pipeline.spec.pipeline import from_json, load_pipeline
from airflow_provider_streamsem.pipeline.spec.several_sources import SeveralSources
from airflow_provider_streamsem.readers.conditions import Retention
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.readers.lag import lag
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore

pytestmark = pytest.mark.spark

ORDERS = "id long, customer string, at timestamp"
PAYMENTS = "order_id long, paid long, at timestamp"


def files(root: Path, name: str, schema: str | None) -> FilesSource:
    return FilesSource(path=str(root / name), format="json", schema=schema, hive_partitions=False)


def union(frames: Mapping[str, DataFrame]) -> DataFrame:
    orders = frames["orders"].selectExpr("'order' AS kind", "id")
    return orders.unionByName(frames["payments"].selectExpr("'payment' AS kind", "order_id AS id"))


def joined(frames: Mapping[str, DataFrame]) -> DataFrame:
    orders = frames["orders"].withWatermark("at", "10 minutes").alias("o")
    payments = frames["payments"].withWatermark("at", "10 minutes").alias("p")
    both = orders.join(payments, F.expr("o.id = p.order_id AND p.at <= o.at + INTERVAL 1 HOUR"))
    return both.selectExpr("o.id", "o.customer", "p.paid")


def pipeline(root: Path, **changes: Any) -> Pipeline:
    for name in ("orders", "payments"):
        (root / name).mkdir(exist_ok=True)
    arguments = {
        "name": "several", "log": str(root / "log"), "transform": union, "sinks": {"out": FilesSink(path=str(root / "out"))},
        "sources": {"orders": files(root, "orders", ORDERS), "payments": files(root, "payments", PAYMENTS)},
    }  # fmt: skip
    return Pipeline(**{**arguments, **changes})


def put(root: Path, source: str, name: str, *lines: dict[str, Any] | str) -> None:
    (root / source).mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    (root / source / f"{name}.json").write_text("\n".join(texts) + "\n")


def order(id: int, minute: int = 0) -> dict[str, Any]:
    return {"id": id, "customer": f"c{id}", "at": f"2024-01-01T00:{minute:02d}:00Z"}


def payment(order_id: int, minute: int = 0) -> dict[str, Any]:
    return {"order_id": order_id, "paid": 10 * order_id, "at": f"2024-01-01T00:{minute:02d}:00Z"}


def rows(spark: SparkSession, root: Path) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in read_committed(spark, str(root / "log")).collect())


def test_each_source_has_its_own_ranges_and_may_have_no_new_records(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "orders", "0", order(1), order(2))
    put(tmp_path, "payments", "0", payment(1))
    run(tmp_path, "first")
    assert lag(pipeline(tmp_path)).lag == 0
    first = plan_of(tmp_path, 0)
    assert first.ranges == {"orders/files": (0, 1), "payments/files": (0, 1)}
    put(tmp_path, "payments", "1", payment(2))
    assert lag(pipeline(tmp_path)).lag == 1
    run(tmp_path, "second")
    assert plan_of(tmp_path, 1).ranges == {"payments/files": (1, 2)}
    put(tmp_path, "orders", "1", order(3))
    run(tmp_path, "third")
    assert rows(spark, tmp_path) == [("order", 1), ("order", 2), ("order", 3), ("payment", 1), ("payment", 2)]
    newest = open_log(str(tmp_path / "log")).log.outcome(2)
    assert newest is not None
    assert dict(newest.next) == {"orders/files": 2, "payments/files": 2}
    assert (newest.counts["read"], newest.counts["read.orders"], newest.counts["read.payments"]) == (1, 1, 0)
    assert verify(str(tmp_path / "log")).violations == []


def run(root: Path, key: str, **changes: Any) -> None:
    run_batch(pipeline(root, **changes), run_key=key)


def plan_of(root: Path, version: int) -> Any:
    plan = open_log(str(root / "log")).log.plan(version)
    assert plan is not None
    return plan


def test_drain_reads_all_sources_up_to_their_ends(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(3):
        put(tmp_path, "orders", str(n), order(n))
    put(tmp_path, "payments", "0", payment(0))
    result = run_batch(pipeline(tmp_path, limits=Limits(max_files=1)), run_key="all", drain=True)
    assert (result.batches, result.counts["read"]) == (3, 4)
    assert result.ranges == {"orders/files": (0, 3), "payments/files": (0, 1)}
    assert len(rows(spark, tmp_path)) == 4


def test_bad_records_are_quarantined_with_the_name_of_their_source(tmp_path: Path) -> None:
    put(tmp_path, "orders", "0", order(1), "{broken")
    put(tmp_path, "payments", "0", payment(1), '{"order_id": "x"}', "nothing")
    run(tmp_path, "first")
    records = [(record["source"], record["raw"]) for record in open_log(str(tmp_path / "log")).quarantined()]
    assert sorted(records) == [("orders", "{broken"), ("payments", "nothing"), ("payments", '{"order_id": "x"}')]
    put(tmp_path, "orders", "1", "{broken")
    put(tmp_path, "payments", "1", "nothing")
    with pytest.raises(DataError, match="max_quarantined"):
        run(tmp_path, "second", limits=Limits(max_quarantined=1))


def test_streams_of_two_sources_are_joined_across_batches(spark: SparkSession, tmp_path: Path) -> None:
    """A payment is joined with the order of an earlier batch. In some batches, including the first, one source has no records."""
    state = State(output_mode="append", partitions=2)
    put(tmp_path, "orders", "0", order(1, 1), order(2, 2))
    run(tmp_path, "orders alone", transform=joined, state=state)
    put(tmp_path, "payments", "0", payment(2, 3))
    run(tmp_path, "payments alone", transform=joined, state=state)
    assert rows(spark, tmp_path) == [(2, "c2", 20)]
    put(tmp_path, "orders", "1", order(3, 4))
    put(tmp_path, "payments", "1", payment(1, 4), payment(3, 5))
    run(tmp_path, "both", transform=joined, state=state)
    assert rows(spark, tmp_path) == [(1, "c1", 10), (2, "c2", 20), (3, "c3", 30)]
    reprocess(pipeline(tmp_path, transform=joined, state=state), 1)
    assert rows(spark, tmp_path) == [(1, "c1", 10), (2, "c2", 20), (3, "c3", 30)]
    assert verify(str(tmp_path / "log")).violations == []


def test_crash_at_any_request_of_a_batch_reads_each_record_once(spark: SparkSession, tmp_path: Path) -> None:
    put(tmp_path, "orders", "0", order(1))
    run(tmp_path, "first")
    put(tmp_path, "orders", "1", order(2))
    put(tmp_path, "payments", "0", payment(1))
    log = commit_log_at(str(tmp_path / "log"))
    at = 0
    while True:
        store = FaultyStore(log.store, at, Fault.CRASH_AFTER)
        try:
            run_batch(pipeline(tmp_path), run_key="second", log=commit_log_on(store))
        except Crash:
            at += 1
            continue
        break
    assert at > 5
    assert rows(spark, tmp_path) == [("order", 1), ("order", 2), ("payment", 1)]
    assert verify(str(tmp_path / "log")).violations == []


def commit_log_on(store: Any) -> Any:
    from airflow_provider_streamsem.commitlog.log import CommitLog

    return CommitLog(store)


def test_changed_item_is_reported_with_the_name_of_its_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "orders", "0", order(1))
    put(tmp_path, "payments", "0", payment(1))

    def change_file_and_union(frames: Mapping[str, DataFrame]) -> DataFrame:
        put(tmp_path, "payments", "0", payment(1), payment(2))
        return union(frames)

    with pytest.raises(SourceChangedError) as caught:
        run(tmp_path, "first", transform=change_file_and_union)
    assert caught.value.fields["source"] == "payments"


def test_gap_of_one_source_is_recorded_under_its_name_and_the_other_source_is_read(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The deleted file of one source becomes a gap of this source alone. Its later files, and all files of the other source, are read once."""

    def fail(frames: Mapping[str, DataFrame]) -> DataFrame:
        raise ConnectionError(frames)

    put(tmp_path, "orders", "0", order(1))
    put(tmp_path, "payments", "0", payment(1), payment(2))
    with pytest.raises(StageError):
        run(tmp_path, "dead", transform=fail)
    put(tmp_path, "payments", "1", payment(3))
    (tmp_path / "payments" / "0.json").unlink()
    with pytest.raises(RecordsMissingError) as caught:
        run(tmp_path, "strict")
    assert caught.value.fields["source"] == "payments"
    result = run_batch(pipeline(tmp_path, on_data_loss="record_gap"), run_key="gap", drain=True)
    log = open_log(str(tmp_path / "log")).log
    aborted, recorded = (log.outcome(version) for version in (0, 1))  # type: ignore[union-attr]
    assert aborted.result == "abort"
    assert "payments" in aborted.reason
    assert recorded.gaps == {"payments/files": ((0, 1),)}
    assert (recorded.counts["gaps"], recorded.counts["read.orders"]) == (1, 1)
    assert result.ranges == {"orders/files": (0, 1), "payments/files": (0, 2)}
    assert rows(spark, tmp_path) == [("order", 1), ("payment", 3)]
    put(tmp_path, "payments", "2", payment(4))
    run(tmp_path, "next")
    assert rows(spark, tmp_path) == [("order", 1), ("payment", 3), ("payment", 4)]
    assert verify(str(tmp_path / "log")).violations == []


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "text"])
def test_empty_batch_of_a_source_has_the_same_columns(spark: SparkSession, tmp_path: Path, format: str) -> None:
    """Otherwise the stored state of a join would not match the schema once the source has records."""
    (tmp_path / "in").mkdir()
    written = spark.sql("SELECT 'a' AS id, 5L AS n") if format != "text" else spark.sql("SELECT 'a' AS value")
    written.coalesce(1).write.format(format).save(str(tmp_path / "in" / "x"))
    schema = None if format == "text" else "id string NOT NULL, n long"
    source = FilesSource(path=str(tmp_path / "in"), format=format, schema=schema, hive_partitions=False)
    (path,) = (tmp_path / "in" / "x").glob("part-*")
    pins = [FilePin(path=str(path.relative_to(tmp_path / "in")), bytes=path.stat().st_size, identity="")]
    with_records, without = source.load(spark, pins), source.load(spark, [])
    assert with_records.frame.drop(*with_records.drop).schema == without.frame.schema
    assert without.frame.count() == 0


def test_fewer_records_of_a_source_that_does_not_compact_are_accepted_in_a_reprocessing_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With the header option, the first line is not a record."""
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "a.csv").write_text("id,customer\n1,x\n")
    put(tmp_path, "payments", "0", payment(1))
    csv = FilesSource(
        path=str(tmp_path / "orders"), format="csv", schema="id string, customer string", hive_partitions=False
    )
    texts = {"transform": lambda frames: frames["orders"].selectExpr("id"), "limits": Limits()}
    sources = {"orders": csv, "payments": files(tmp_path, "payments", PAYMENTS)}
    run(tmp_path, "first", sources=sources, **texts)
    fixed = {**sources, "orders": dataclasses.replace(csv, options={"header": "true"})}
    reprocess(pipeline(tmp_path, sources=fixed, **texts), 0)
    assert rows(spark, tmp_path) == [("1",)]


def test_retention_condition_is_refused_if_no_source_has_retention(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="no retention"):
        Retention(pipeline=pipeline(tmp_path), within_s=1)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"where": "id > 1"}, "records of one source"),
        ({"dedup": Dedup(keys=["id"], rows=5)}, "records of one source"),
        ({"rows": "filter"}, "records of one source"),
        ({"sources": {}}, "at least one name"),
        ({"sources": {"a": FilesSource(path="/x", format="parquet", hive_partitions=False)}}, "give it a schema"),
        ({"sources": {"a": FilesSource(path="/x", format="text")}}, "hive_partitions=False"),
        ({"sources": {"Orders/": None}}, "source name"),
        ({"sources": None}, "exactly one of source and sources"),
        ({"limits": Limits(max_rows=5), "sources": {"a": KafkaSource(topics=["a"], bootstrap_servers="b:1"), "b": FilesSource(path="/x", format="text", hive_partitions=False)}}, ""),
        ({"sources": {name: FilesSource(path=path, format="text", hive_partitions=False) for name, path in (("a", "/x"), ("b", "/x/y"))}}, "overlap"),
    ],
)  # fmt: skip
def test_arguments_that_require_one_source_are_refused(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    if not reason:
        assert pipeline(tmp_path, **changes).limits.max_rows == 5
        return
    with pytest.raises(InvalidError, match=reason):
        pipeline(tmp_path, **changes)


def test_spec_with_several_sources_is_the_same_in_toml_json_and_python(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text(f"""
name = "several"
log = "{tmp_path}/log"
transform = "tests.pipeline.test_several_sources:union"
[sources.orders]
type = "files"
path = "{tmp_path}/orders"
format = "json"
schema = "{ORDERS}"
hive_partitions = false
[sources.payments]
type = "kafka"
topics = ["payments"]
bootstrap_servers = "broker:9092"
value = {{type = "json", schema = "{PAYMENTS}"}}
[sinks.out]
type = "files"
path = "{tmp_path}/out"
""")
    loaded = load_pipeline(str(tmp_path / "p.toml"))
    assert isinstance(loaded.source, SeveralSources)
    assert list(loaded.source.parts) == ["orders", "payments"]
    spec = loaded.without_transform()
    with pytest.raises(InvalidError, match="at least one name"):
        from_json({**spec, "sources": {}})
    assert from_json({**spec, "transform": loaded.transform_name}).to_json() == loaded.to_json()
    assert loaded.replace(limits=Limits(max_rows=9)).source == loaded.source
    assert loaded.replace(sources={"only": files(tmp_path, "orders", ORDERS)}).source.location is None
    assert loaded.extras == ["kafka"]
    assert ["kafka" in package.coordinates for package in loaded.spark_packages] == [True]
    found = guarantee(loaded)
    assert found.label == "exactly_once"
    assert any(reason.startswith("source: payments: ") for reason in found.reasons)


def test_run_without_a_transform_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    """The spec itself is valid, because `@task.micro_batch` adds the transform."""
    put(tmp_path, "orders", "0", order(1))
    with pytest.raises(InvalidError, match="`sources` requires a transform"):
        run(tmp_path, "first", transform=None)
    assert open_log(str(tmp_path / "log")).log.plan(0) is None


def test_forged_pins_of_another_source_are_refused() -> None:
    source = SeveralSources({"a": FilesSource(path="/a", format="text")})
    for forged in ({"a": []}, [{"source": "b", "pins": []}], [{"source": "a", "pins": []}] * 2, ["a"]):
        with pytest.raises(LogDamagedError):
            source.read_pins(forged)


class TestAlter:
    """Sources are added to a pipeline with several sources."""

    @staticmethod
    def rated(root: Path, *names: str, **changes: Any) -> Pipeline:
        sources = {name: RateSource(rows_per_second=1, rows=4, start="2026-01-01T00:00:00Z") for name in names}
        return pipeline(root, sources=sources, transform=tagged, **changes)

    def test_new_source_is_read_from_its_start_and_the_others_continue(
        self, tmp_path: Path, spark: SparkSession
    ) -> None:
        two = self.rated(tmp_path, "a", "b")
        run_batch(two, run_key="first")
        three = two.replace(sources={**two.source.parts, "c": files(tmp_path, "orders", ORDERS)}, transform=tagged)
        put(tmp_path, "orders", "1.json", {"id": 7}, {"id": 8})
        with pytest.raises(ConflictError, match="streamsem alter"):
            run_batch(three, run_key="early")
        assert alter(three).version == 1
        with pytest.raises(ConflictError):
            run_batch(two, run_key="late")
        result = run_batch(three, run_key="second", drain=True)
        assert result.counts["read"] == 2
        rows = read_committed(spark, two.log).groupBy("source").count().collect()
        assert {row["source"]: row["count"] for row in rows} == {"a": 4, "b": 4, "c": 2}
        assert verify(three).violations == []
        reprocess(three, 0, run_key="fix")
        assert read_committed(spark, two.log).count() == 10

    def test_missing_source_and_another_source_of_the_same_name_are_refused(self, tmp_path: Path) -> None:
        two = self.rated(tmp_path, "a", "b")
        run_batch(two, run_key="first")
        other = {**two.source.parts, "b": RateSource(rows_per_second=2, rows=4)}
        for changed in (
            self.rated(tmp_path, "a", "c"),
            two.replace(sources=other),
            two.replace(sources={"a": two.source.parts["a"], "c": two.source.parts["b"]}),
        ):
            with pytest.raises(InvalidError, match="the source reads other records"):
                alter(changed)

    def test_sources_with_a_list_of_their_records_in_the_log_are_not_altered(self, tmp_path: Path) -> None:
        two = pipeline(tmp_path)
        put(tmp_path, "orders", "1.json", {"id": 1})
        run_batch(two, run_key="first")
        three = two.replace(sources={**two.source.parts, "c": RateSource(rows=4)})
        with pytest.raises(InvalidError, match="the log stores the discovered files or messages"):
            alter(three)
        assert open_log(two.log).head == 0


def tagged(frames: Mapping[str, DataFrame]) -> DataFrame:
    parts = [
        frame.select(F.lit(name).alias("source"), F.col(frame.columns[0]).cast("long").alias("n"))
        for name, frame in frames.items()
    ]
    return functools.reduce(DataFrame.unionByName, parts)
