"""Partitions by event time on Spark: every type of time, time zones of the session, and each format of files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import (
    Aggregate,
    FilesSink,
    FilesSource,
    Limits,
    Partitions,
    Pipeline,
    State,
    Window,
    open_log,
    reprocess,
    run_batch,
)
from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.readers.partitions import partition_states
from airflow_provider_streamsem.transforms import monoids as m

pytestmark = pytest.mark.spark

TIMES = ["2026-03-28T22:59:59.999999Z", "2026-03-28T23:00:00Z", "2026-03-29T21:59:59Z", "2026-03-29T22:00:00Z", None]
"""The second and third are the first and the last second of 2026-03-29 in Zurich, which has 23 hours."""
DAYS = {"UTC": {"2026-03-28": 2, "2026-03-29": 2, "null": 1}, "Europe/Zurich": {"2026-03-28": 1, "2026-03-29": 2, "2026-03-30": 1, "null": 1}}  # fmt: skip


def timed(root: Path, partitions: Partitions, times: list[Any] = TIMES, **arguments: Any) -> Pipeline:
    (root / "in").mkdir(parents=True, exist_ok=True)
    (root / "in" / "1.json").write_text("".join(json.dumps({"id": n, "at": at}) + "\n" for n, at in enumerate(times)))
    source = FilesSource(path=str(root / "in"), format="json", schema="id long, at timestamp")
    sinks = {"out": FilesSink(path=str(root / "out"), format=arguments.pop("format", "parquet"))}
    return Pipeline(name="timed", log=str(root / "log"), source=source, sinks=sinks, partitions=partitions, **arguments)


def written(pipeline: Pipeline) -> dict[str, int]:
    return dict(open_log(pipeline.log).log.closed_outcome(0).time_partitions)


@pytest.mark.parametrize("session_zone", ["UTC", "America/Los_Angeles"])
@pytest.mark.parametrize("zone", DAYS)
@pytest.mark.parametrize("format", ["parquet", "json"])
def test_instants_are_in_the_days_of_the_time_zone_whatever_the_zone_of_the_session(
    spark: SparkSession, tmp_path: Path, zone: str, session_zone: str, format: str
) -> None:
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", session_zone)
    try:
        pipeline = timed(tmp_path, Partitions(by="at", after=0, timezone=zone), format=format)
        run_batch(pipeline, run_key="a")
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    assert written(pipeline) == DAYS[zone]
    complete = open_log(pipeline.log).log.closed_outcome(0).complete
    assert complete is not None
    assert complete.until_ms == 1_774_821_600_000, "2026-03-29T22:00:00Z"


@pytest.mark.parametrize(
    ("column", "keys"),
    [
        ("cast(null AS timestamp_ntz)", {"null": 1}),
        ("timestamp_ntz'2026-10-25 02:30:00'", {"2026-10-25": 1}),
        ("timestamp_ntz'2026-10-25 00:00:00'", {"2026-10-25": 1}),
        ("timestamp_ntz'2026-10-24 23:59:59.999999'", {"2026-10-24": 1}),
        ("date'2026-10-25'", {"2026-10-25": 1}),
        ("date'0002-01-01'", {"0002-01-01": 1}),
        ("date'-0044-03-15'", {"null": 1}),
        ("timestamp_micros(9223372036854775807)", {"null": 1}),
        ("timestamp_micros(-1)", {"1970-01-01": 1}),
    ],
)  # fmt: skip
def test_local_times_and_dates_are_in_the_days_that_they_name(tmp_path: Path, column: str, keys: dict[str, int]) -> None:  # fmt: skip
    partitions = Partitions(by="day", after=0, timezone="Europe/Zurich")
    pipeline = timed(tmp_path, partitions, [None], transform=lambda frame: frame.selectExpr("id", f"{column} AS day"))
    run_batch(pipeline, run_key="a")
    assert written(pipeline) == keys


@pytest.mark.parametrize("column", ["missing", "id"])
def test_column_without_a_time_is_refused(tmp_path: Path, column: str) -> None:
    with pytest.raises(DataError, match="is missing, or is neither a timestamp nor a date"):
        run_batch(timed(tmp_path, Partitions(by=column, after=0)), run_key="a")


def test_reprocessing_after_a_correction_moves_rows_to_other_partitions(tmp_path: Path) -> None:
    pipeline = timed(tmp_path, Partitions(by="at", grain="hour", after=0))
    run_batch(pipeline, run_key="a")
    reprocess(pipeline.replace(transform=lambda frame: frame.selectExpr("id", "at + INTERVAL 1 DAY AS at")), 0)
    states = {each.key: (each.rows, each.is_complete) for each in partition_states(open_log(pipeline.log))}
    assert states == {
        "2026-03-29T22": (1, False), "2026-03-29T23": (1, False), "2026-03-30T21": (1, False), "2026-03-30T22": (1, False), "null": (1, False),
    }  # fmt: skip


def test_watermark_completes_a_partition_with_the_version_that_writes_its_window(tmp_path: Path) -> None:
    window = Window(time="at", size="1 hour", delay="0 seconds")
    pipeline = timed(
        tmp_path,
        Partitions(by="window_start", grain="hour", complete="watermark"),
        ["2026-01-01T04:30:00Z", "2026-01-01T05:30:00Z"],
        transform=Aggregate(by=[], window=window, values={"n": m.count()}),
        state=State(output_mode="append", partitions=1),
    )
    results = [run_batch(pipeline, run_key="0")]
    for run, at in ((1, "2026-01-01T06:30:00Z"), (2, "2026-01-01T07:30:00Z")):
        (tmp_path / "in" / f"{run + 1}.json").write_text(json.dumps({"id": run, "at": at}) + "\n")
        results += [run_batch(pipeline, run_key=f"{run}-{n}") for n in range(2)]
    outcomes = [open_log(pipeline.log).log.closed_outcome(each.version) for each in results]
    assert [outcome.counts["late_partition_rows"] for outcome in outcomes] == [0] * len(outcomes)
    completed = {key: result.version for result in results for key in result.complete_partitions}
    wrote = {f"{key}:00:00": outcome.version for outcome in outcomes for key in outcome.time_partitions}
    assert completed == {key: version for key, version in wrote.items() if key in completed}
    assert {"2026-01-01T04:00:00", "2026-01-01T05:00:00", "2026-01-01T06:00:00"} <= completed.keys()


def test_drain_of_several_sources_completes_partitions_by_the_offsets_of_its_batches(tmp_path: Path) -> None:
    for name, files in (("a", 3), ("b", 1)):
        (tmp_path / name).mkdir()
        for n in range(files):
            (tmp_path / name / f"{n}.json").write_text(json.dumps({"id": n, "at": TIMES[0]}) + "\n")
            os.utime(tmp_path / name / f"{n}.json", (1_700_000_000 + n, 1_700_000_000 + n))
    sources = {
        name: FilesSource(
            path=str(tmp_path / name), format="json", schema="id long, at timestamp", hive_partitions=False
        )
        for name in "ab"
    }
    pipeline = Pipeline(
        name="timed",
        log=str(tmp_path / "log"),
        sources=sources,
        sinks={"out": FilesSink(path=str(tmp_path / "out"))},
        transform=lambda frames: frames["a"].unionByName(frames["b"]),
        limits=Limits(max_files=1),
        partitions=Partitions(by="at", complete="source time"),
    )
    result = run_batch(pipeline, run_key="drain", drain=True)
    plan, _ = open_log(pipeline.log).log.closed_version(result.version)
    assert plan.source_time_ms is not None
    assert plan.source_time_ms > 1_750_000_000_000, "everything is read"


def test_file_that_has_not_settled_is_unread(tmp_path: Path) -> None:
    pipeline = timed(tmp_path, Partitions(by="at", complete="source time"))
    source = FilesSource(path=str(tmp_path / "in"), format="json", schema="id long, at timestamp", settle_s=2)
    time.sleep(2.1)
    (tmp_path / "in" / "2.json").write_text(json.dumps({"id": 9, "at": TIMES[0]}) + "\n")
    arrived_ms = int((tmp_path / "in" / "2.json").stat().st_mtime * 1000)
    result = run_batch(pipeline.replace(source=source), run_key="a")
    plan, outcome = open_log(pipeline.log).log.closed_version(result.version)
    assert outcome.counts["read"] == len(TIMES)
    assert plan.source_time_ms == arrived_ms
