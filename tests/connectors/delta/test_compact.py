"""Compaction of the table of a Delta sink: the rows stay equal, and no writer, crash or reader is affected."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.transaction import AddAction

from airflow_provider_streamsem import DeltaSource, Limits, Pipeline, compact, rollback
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.delta import rewrite as delta_rewrite
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.errors import (
    DataError,
    HeldVersionError,
    InvalidError,
    OpenVersionError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.compact import Compacted
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.review import stage_reprocessing
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.code_blocks import blocks
from tests.connectors.batches import UUID, before, outcome_of, resolve_schema, schema_of, staged
from tests.connectors.delta.delta_fixture import DeltaFixture
from tests.pipeline_fixture import die

TARGET = 65_536
DELTA_PAGE = Path(__file__).parents[3] / "docs" / "connectors" / "delta-sink.md"


@pytest.fixture
def fixture(tmp_path: Path) -> DeltaFixture:
    """Versions 0 to 3 of the pipeline are in the table, each in one file."""
    fixture = DeltaFixture(tmp_path)
    fixture.arrive(8)
    fixture.run("first", drain=True)
    return fixture


def compacted(fixture: DeltaFixture, *, pipeline: Pipeline | None = None, **arguments: Any) -> list[Compacted]:
    arguments = {"sink": "table", "target_file_bytes": TARGET, **arguments}
    return compact(pipeline or fixture.pipeline(), log=fixture.log(), **arguments)


def files(fixture: DeltaFixture) -> list[str]:
    return DeltaTable(fixture.table).file_uris()


def entry(fixture: DeltaFixture) -> list[dict[str, Any]]:
    """Return the actions of the newest entry of the table's log."""
    table = DeltaTable(fixture.table)
    path = Path(fixture.table) / "_delta_log" / f"{table.version():020d}.json"
    return [json.loads(line) for line in path.read_text().splitlines()]


def during_compaction(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object], *, after: bool = False) -> None:
    """Call ``act`` when the compaction has read the table and not committed, or ``after`` its commit."""
    real = DeltaTable.create_write_transaction

    def compacting(self: Any, *arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(DeltaTable, "create_write_transaction", real)
        if not after:
            act()
        result = real(self, *arguments, **named)
        if after:
            act()
        return result

    monkeypatch.setattr(DeltaTable, "create_write_transaction", compacting)


def test_rows_stay_equal_in_fewer_files_and_the_log_gets_no_version(fixture: DeltaFixture) -> None:
    head, before = fixture.log().find_head().closed, DeltaTable(fixture.table).version()
    (done,) = compacted(fixture)
    assert (done.version, done.commits, done.rows, done.files, done.new_files) == (None, None, 24, 4, 1)
    assert done.table_version == str(before + 1) == str(DeltaTable(fixture.table).version())
    assert (len(files(fixture)), fixture.log().find_head().closed) == (1, head)
    changes = [action for each in entry(fixture) for kind, action in each.items() if kind != "commitInfo"]
    assert [action["dataChange"] for action in changes] == [False] * 5
    fixture.arrive(2)
    fixture.run("next")
    fixture.check_exactly_once()


def test_vacuum_of_delta_deletes_only_files_that_compaction_has_removed(fixture: DeltaFixture) -> None:
    before = {*files(fixture)}
    compacted(fixture)
    (code,) = [block for block in blocks(DELTA_PAGE, "python") if ".vacuum(" in block]
    code = code.replace("s3://lake/tables/orders", fixture.table).replace("retention_hours=168", "retention_hours=0")
    code = re.sub(r"(retention_hours=0)", r"\1, enforce_retention_duration=False", code)
    exec(compile(code, "delta-sink.md", "exec"), {})
    after = {*map(str, Path(fixture.table).rglob("*.parquet"))}
    assert after.isdisjoint({uri.removeprefix("file://") for uri in before})
    fixture.arrive(2)
    fixture.run("next")
    fixture.check_exactly_once()


def test_second_compaction_finds_nothing(fixture: DeltaFixture) -> None:
    compacted(fixture)
    version = DeltaTable(fixture.table).version()
    assert compacted(fixture) == []
    assert DeltaTable(fixture.table).version() == version


def test_table_is_compacted_only_if_its_sink_is_named(fixture: DeltaFixture) -> None:
    with pytest.raises(InvalidError, match=r"only if its sink is named.*tables=\['table'\]"):
        compacted(fixture, sink=None)
    assert len(files(fixture)) == 4


def test_dry_run_returns_what_a_compaction_rewrites_and_writes_nothing(fixture: DeltaFixture) -> None:
    before = sorted(Path(fixture.table).rglob("*"))
    (possible,) = compacted(fixture, dry_run=True)
    assert sorted(Path(fixture.table).rglob("*")) == before
    assert (possible.version, possible.table_version, possible.new_files, possible.new_bytes) == (None,) * 4
    (done,) = compacted(fixture)
    assert (done.rows, done.files, done.bytes) == (possible.rows, possible.files, possible.bytes)


@pytest.mark.parametrize("sizes", [[10, 8000, 5, 9000, 7, 10, 100, 7000, 9000, 1, 20000, 2], [3000, 1, 3000, 1]])
def test_dry_run_predicts_the_files_that_are_rewritten(tmp_path: Path, sizes: list[int]) -> None:
    path = str(tmp_path / "table")
    for at, size in enumerate(sizes):
        values = [(at + 1) * n * 0.37 % 1 for n in range(size)]
        write_deltalake(path, pyarrow.table({"id": values}), mode="append")
    sink = DeltaSink(path)
    arguments: dict[str, Any] = {"target_file_bytes": 90_000, "max_bytes": TARGET, "before_commit": lambda: None}
    (possible,) = sink.compact_table(dry_run=True, **arguments)
    (done,) = sink.compact_table(dry_run=False, **arguments)
    assert (done.rows, done.files, done.bytes) == (possible.rows, possible.files, possible.bytes)


def test_missing_table_has_nothing_to_compact(tmp_path: Path) -> None:
    fixture = DeltaFixture(tmp_path)
    fixture.run("empty")
    assert compacted(fixture) == []


def test_batch_published_during_the_compaction_is_kept(fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture.arrive(2)
    during_compaction(monkeypatch, lambda: fixture.run("during"))
    (done,) = compacted(fixture)
    assert (done.files, len(files(fixture))) == (4, 2)
    fixture.check_exactly_once()


@pytest.mark.parametrize("when", ["before create_write_transaction", "after create_write_transaction"])
def test_compaction_during_a_publish_changes_no_row(fixture: DeltaFixture, watch_delta_writes: Any, when: str) -> None:
    done: list[Compacted] = []
    started: list[str] = []

    def compact_once(name: str) -> None:
        if name == when and not started:  # the compaction commits with the same call
            started.append(name)
            done.extend(compacted(fixture))

    fixture.arrive(2)
    watch_delta_writes(compact_once)
    fixture.run("next")
    assert len(done) == 1
    fixture.check_exactly_once()


def test_deletion_during_the_compaction_wins_and_the_compaction_can_be_repeated(
    fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    during_compaction(monkeypatch, lambda: DeltaTable(fixture.table).delete("id = 0"))
    with pytest.raises(UnavailableError, match="another writer changed the Delta table") as refused:
        compacted(fixture)
    assert refused.value.retryable
    assert fixture.rows() == fixture.expected - Counter([0])
    assert len(compacted(fixture)) == 1
    assert fixture.rows() == fixture.expected - Counter([0])


def test_reprocessing_run_published_during_the_compaction_wins(
    fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    during_compaction(monkeypatch, lambda: fixture.run("again", reprocessed=1))
    with pytest.raises(UnavailableError):
        compacted(fixture)
    fixture.check_exactly_once()


def test_compaction_whose_reply_was_lost_is_found_in_the_log_of_the_table(
    fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose() -> None:
        raise OSError("the reply was lost")

    during_compaction(monkeypatch, lose, after=True)
    (done,) = compacted(fixture)
    assert (done.files, done.new_files, len(files(fixture))) == (4, 1, 1)


def test_failed_request_of_the_store_is_retryable(fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError("connection reset")

    during_compaction(monkeypatch, fail)
    with pytest.raises(UnavailableError, match="no entry of the compaction"):
        compacted(fixture)
    assert len(compacted(fixture)) == 1


@pytest.mark.parametrize("after", [False, True])
def test_killed_compaction_leaves_the_table_readable_and_the_next_batch_is_published(
    fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    during_compaction(monkeypatch, die, after=after)
    with pytest.raises(Crash):
        compacted(fixture)
    assert fixture.rows() == fixture.expected
    fixture.arrive(2)
    fixture.run("next")
    fixture.check_exactly_once()
    compacted(fixture)
    fixture.check_exactly_once()


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (lambda rows: rows.slice(1), "rows_read=24, rows_written=20, columns=\\[\\]"),
        (lambda rows: rows.set_column(0, "id", pc.add(rows["id"], 1)), "rows_written=24, columns=\\['id'\\]"),
    ],
)
def test_new_file_with_other_rows_is_not_committed(
    fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch, change: Any, facts: str
) -> None:
    real = delta_rewrite.write
    monkeypatch.setattr(
        delta_rewrite, "write", lambda file, rows, *more, **named: real(file, map(change, rows), *more, **named)
    )
    before = (DeltaTable(fixture.table).version(), sorted(Path(fixture.table).rglob("*")))
    with pytest.raises(DataError, match=facts):
        compacted(fixture)
    assert (DeltaTable(fixture.table).version(), sorted(Path(fixture.table).rglob("*"))) == before


def test_compacted_version_cannot_be_reprocessed_or_rolled_back_and_a_later_one_can(fixture: DeltaFixture) -> None:
    compacted(fixture)
    fixture.arrive(4)
    fixture.run("next", drain=True)
    head = fixture.log().find_head().closed
    with pytest.raises(InvalidError, match="another writer rewrote or deleted files"):
        fixture.run("refused", reprocessed=1)
    with pytest.raises(InvalidError, match="another writer rewrote or deleted files"):
        rollback(fixture.pipeline(), 1, log=fixture.log())
    assert fixture.log().find_head().closed == head
    fixture.run("later", reprocessed=head)
    fixture.check_exactly_once()
    rollback(fixture.pipeline(), 4, log=fixture.log())
    assert fixture.rows() == Counter(range(30))
    fixture.run("again", drain=True)
    fixture.check_exactly_once()


@pytest.mark.parametrize("step", ["before create_write_transaction", "held"])
def test_table_is_not_compacted_while_a_reprocessing_run_must_remove_files(
    fixture: DeltaFixture, watch_delta_writes: Any, step: str
) -> None:
    def refuse(name: str) -> None:
        if name == step:
            with pytest.raises(OpenVersionError, match="must remove files from tables"):
                compacted(fixture)

    if step == "held":
        stage_reprocessing(fixture.pipeline(), 1, log=fixture.log(), engine=RowsEngine())
        with pytest.raises(HeldVersionError):
            compacted(fixture)
    else:
        watch_delta_writes(refuse)
        fixture.run("again", reprocessed=1)
        fixture.check_exactly_once()
    assert len(files(fixture)) == 4


@pytest.mark.parametrize("changes", ["refuse", "skip"])
def test_delta_source_reads_no_row_of_a_compacted_table_twice(fixture: DeltaFixture, changes: str) -> None:
    source = DeltaSource(path=fixture.table, starting="earliest", changes=changes)
    offsets, hint, rows = dict(source.initial_offsets()), None, 0

    def read() -> int:
        nonlocal hint
        found = 0
        while True:
            planner = source.open(CommitLog(MemoryStore()), hint)
            planned = planner.slice(offsets, planner.poll(hint), Limits(), hint, on_data_loss="fail")
            if planned is None:
                return found
            offsets.update({name: end for name, (_, end) in planned.ranges.items()})
            hint = source.next_hint(planned.hint, planned.pins, {})
            found += planned.rows

    rows = read()
    compacted(fixture)
    assert (rows, read()) == (24, 0)
    fixture.arrive(2)
    fixture.run("next")
    assert read() == 6


def test_vacuum_after_a_compaction_keeps_the_files_of_older_versions_of_the_table(fixture: DeltaFixture) -> None:
    before = DeltaTable(fixture.table).version()
    fixture.arrive(2)
    fixture.dies("next", at="collect table")
    fixture.run("next")
    compacted(fixture)
    vacuumed = vacuum(fixture.pipeline(), log=fixture.log(), all_versions=True)
    assert len(vacuumed.attempts) == 1, "the attempt of the process that died"
    old = DeltaTable(fixture.table, version=before).to_pyarrow_table()["id"].to_pylist()
    assert Counter(old) == Counter(range(24))
    assert fixture.verdict().violations == []


def test_restore_to_the_version_before_the_compaction_makes_versions_reprocessable_again(fixture: DeltaFixture) -> None:
    before = DeltaTable(fixture.table).version()
    compacted(fixture)
    DeltaTable(fixture.table).restore(before)
    fixture.run("again", reprocessed=1)
    fixture.check_exactly_once()


def test_partitions_columns_and_nested_values_stay_equal(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "table"), partition_by=["p"])
    first = schema_of(id="long", p="string")
    struct = {"type": "struct", "fields": [{"name": "a", "type": "long", "nullable": True, "metadata": {}}]}
    later = schema_of(id="long", p="string", s=struct, t="timestamp")
    paths = {"a b/c": "p=a_20b_2Fc", None: "p=_null", "c": "p=c"}
    for version in range(3):
        for number, (value, directory) in enumerate(paths.items()):
            rows = {"id": pyarrow.array([version], pyarrow.int64())}
            if version:
                rows["s"] = pyarrow.array([{"a": version}], pyarrow.struct([("a", pyarrow.int64())]))
                rows["t"] = pyarrow.array([version], pyarrow.timestamp("us", "UTC"))
            at = version * 3 + number
            batch = _staged_partition(sink, at, rows, directory, later if version else first)
            assert sink.publish(batch) is not None, value
    unchanged = _values(sink)
    (done,) = sink.compact_table(target_file_bytes=TARGET, max_bytes=TARGET, dry_run=False, before_commit=lambda: None)
    assert (done.files, done.new_files) == (9, 3)
    assert _values(sink) == unchanged
    assert {*DeltaTable(sink.path).to_pyarrow_table()["p"].to_pylist()} == {*paths}


def _staged_partition(sink: DeltaSink, version: int, rows: dict[str, Any], directory: str, schema: str) -> Any:
    resolve_schema(sink, schema)
    location = Path(sink.attempt_location(version, "a" * 32)) / directory
    location.mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.table(rows), location / "part-00000.parquet")
    return SinkCommit(
        pipeline_uuid=UUID,
        sink="t",
        version=version,
        outcome=outcome_of(version),
        committable=sink.collect(version, "a" * 32),
        schema=schema,
        root=version,
        expected_marker=before(version),
    )


def _values(sink: DeltaSink) -> list[str]:
    return sorted(map(repr, DeltaTable(sink.path).to_pyarrow_table().to_pylist()))


def test_table_that_is_merged_by_key_is_compacted(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "table"), mode="upsert", keys=["id"])
    for version in range(4):
        rows = pyarrow.table({"id": [version, 100 + version], "v": [version, version]})
        sink.publish(staged(sink, rows, version, schema=schema_of(id="long", v="long")))
    (done,) = sink.compact_table(target_file_bytes=TARGET, max_bytes=TARGET, dry_run=False, before_commit=lambda: None)
    assert (done.rows, done.new_files) == (8, 1)
    rows = pyarrow.table({"id": [0], "v": [9]})
    sink.publish(staged(sink, rows, 4, schema=schema_of(id="long", v="long")))
    table = DeltaTable(sink.path).to_pyarrow_table().sort_by("id")
    assert table["v"].to_pylist() == [9, 1, 2, 3, 0, 1, 2, 3]


def add_file(path: str, times: pyarrow.Array, *, is_int96: bool) -> None:
    """Create a table with two files, and add a file with these times and without bounds."""
    for _ in range(2):
        write_deltalake(path, pyarrow.table({"t": pyarrow.array([0], pyarrow.timestamp("us", "UTC"))}), mode="append")
    old = Path(path) / "old.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"t": times}), old, use_deprecated_int96_timestamps=is_int96)
    table = DeltaTable(path)
    action = AddAction("old.parquet", old.stat().st_size, {}, 0, True, '{"numRecords":1}')
    table.create_write_transaction([action], "append", table.schema(), [])


def test_file_with_dates_that_arrow_would_change_is_refused(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    add_file(path, pyarrow.array([-(10**16)], pyarrow.timestamp("us", "UTC")), is_int96=True)
    for dry_run in (True, False):
        with pytest.raises(InvalidError, match="dates or times that the compaction would change"):
            DeltaSink(path).compact_table(
                target_file_bytes=TARGET, max_bytes=TARGET, dry_run=dry_run, before_commit=lambda: None
            )
    assert DeltaTable(path).version() == 2


def test_times_after_the_year_9999_are_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    far = 40_000 * 365 * 86_400 * 10**6
    add_file(path, pyarrow.array([far], pyarrow.timestamp("us", "UTC")), is_int96=False)
    arguments: dict[str, Any] = {"target_file_bytes": TARGET, "max_bytes": TARGET, "before_commit": lambda: None}
    (done,) = DeltaSink(path).compact_table(dry_run=False, **arguments)
    assert (done.files, done.new_files) == (3, 1)
    times = DeltaTable(path).to_pyarrow_table()["t"].cast(pyarrow.int64()).to_pylist()
    assert sorted(times) == [0, 0, far]


def test_file_whose_removal_delta_rs_would_spell_in_another_way_is_refused(tmp_path: Path) -> None:
    """Its rows would be in the table twice."""
    path = str(tmp_path / "table")
    DeltaTable.create(path, pyarrow.schema([("id", pyarrow.int64())]))
    for number in range(2):
        name = f"é{number}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"id": [number]}), Path(path) / name)
        size = (Path(path) / name).stat().st_size
        entry = {"path": name, "partitionValues": {}, "size": size, "modificationTime": 0, "dataChange": True}
        (Path(path) / f"_delta_log/{number + 1:020d}.json").write_text(json.dumps({"add": entry}))
    assert len(DeltaTable(path).to_pyarrow_table()) == 2
    with pytest.raises(InvalidError, match="path é"):
        DeltaSink(path).compact_table(target_file_bytes=TARGET, max_bytes=0, dry_run=False, before_commit=lambda: None)
    with pytest.raises(DataError, match="path é"):
        DeltaSink(path, mode="upsert", keys=["id"]).resolve_schema(schema_of(id="long"))


def test_paths_of_other_writers_with_escaped_characters_are_compacted(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    for number in range(2):
        rows = pyarrow.table({"id": [number] * 2, "p": ["a b%/é", "c"]})
        write_deltalake(path, rows, partition_by=["p"], mode="append")
    sink = DeltaSink(path, partition_by=["p"])
    (done,) = sink.compact_table(target_file_bytes=TARGET, max_bytes=TARGET, dry_run=False, before_commit=lambda: None)
    assert (done.files, done.new_files) == (4, 2)
    assert _values(sink) == sorted(repr({"id": number, "p": text}) for number in range(2) for text in ("a b%/é", "c"))


@pytest.mark.parametrize(
    "values", [pyarrow.array([1.5]), pyarrow.array([b"a"]), pyarrow.array(["__HIVE_DEFAULT_PARTITION__"])]
)
def test_partition_values_that_delta_rs_would_change_are_refused(tmp_path: Path, values: Any) -> None:
    path = str(tmp_path / "table")
    write_deltalake(path, pyarrow.table({"id": [0], "p": values}), partition_by=["p"])
    table = DeltaTable(path)
    for number in range(2):
        file = Path(path) / f"{number}.parquet"
        pyarrow.parquet.write_table(pyarrow.table({"id": [number]}), file)
        text = str(values[0].as_py()) if not isinstance(values[0].as_py(), bytes) else "a"
        action = AddAction(file.name, file.stat().st_size, {"p": text}, 0, True, '{"numRecords":1}')
        table.create_write_transaction([action], "append", table.schema(), ["p"])
        table = DeltaTable(path)
    with pytest.raises(InvalidError, match="may change values of partition columns"):
        DeltaSink(path, partition_by=["p"]).compact_table(
            target_file_bytes=TARGET, max_bytes=TARGET, dry_run=False, before_commit=lambda: None
        )


def test_table_with_requirements_for_writers_is_refused(fixture: DeltaFixture) -> None:
    DeltaTable(fixture.table).alter.add_constraint({"positive": "id >= 0"})
    with pytest.raises(InvalidError, match="requirements for writers"):
        compacted(fixture)
