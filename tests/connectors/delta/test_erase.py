"""Erasures from the table of a Delta sink: the selected rows disappear, and no other row changes, also after crashes and among other writers."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem import FilesSink, erase
from airflow_provider_streamsem.connectors.delta import rewrite as delta_rewrite
from airflow_provider_streamsem.connectors.delta.sink import DeltaSink
from airflow_provider_streamsem.connectors.predicate import Predicate
from airflow_provider_streamsem.errors import (
    DataError,
    InvalidError,
    OpenVersionError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.pipeline.maintenance.erase import Erased
from airflow_provider_streamsem.pipeline.maintenance.selected_rows import Selector
from airflow_provider_streamsem.pipeline.versions.publish import skip
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import Steps
from airflow_provider_streamsem.testing.stores import CountingStore, Crash
from tests.connectors.batches import schema_of, staged
from tests.connectors.delta.delta_fixture import DeltaFixture
from tests.connectors.delta.tables import commit, create_table, definition, field
from tests.connectors.odd_values import COLUMNS, odd_rows

IDS = (4, 9, 10)
WHERE = "id IN (4, 9, 10)"


@pytest.fixture
def fixture(tmp_path: Path) -> DeltaFixture:
    """Versions 0 to 3 of the pipeline are in the table, each in one file."""
    fixture = DeltaFixture(tmp_path)
    fixture.arrive(8)
    fixture.run("first", drain=True)
    return fixture


def erased(fixture: DeltaFixture, where: str = WHERE, **arguments: Any) -> Erased:
    return erase(fixture.pipeline(), where=where, log=fixture.log(), engine=RowsEngine(), **arguments)


def check(fixture: DeltaFixture) -> None:
    assert fixture.verdict().violations == []
    assert fixture.rows() == fixture.expected - Counter(IDS)


def test_rows_are_erased_in_one_entry_and_later_batches_are_published(fixture: DeltaFixture) -> None:
    before = DeltaTable(fixture.table).version()
    result = erased(fixture)
    assert [(each.sink, each.rows, each.files) for each in result.sinks] == [("table", 3, 2)]
    assert result.sinks[0].table_version == str(before + 1) == str(DeltaTable(fixture.table).version())
    assert result.versions == (), "the log has no rows of a table"
    assert any("VACUUM" in sentence for sentence in result.remaining)
    fixture.arrive(2)
    fixture.run("next")
    check(fixture)
    assert erased(fixture).sinks == ()


def test_dry_run_changes_nothing(fixture: DeltaFixture) -> None:
    before = DeltaTable(fixture.table).version()
    assert [each.rows for each in erased(fixture, dry_run=True).sinks] == [3]
    assert DeltaTable(fixture.table).version() == before


def test_erased_version_cannot_be_reprocessed_in_the_table(fixture: DeltaFixture) -> None:
    erased(fixture)
    with pytest.raises(InvalidError, match="cannot be removed"):
        fixture.run("again", reprocessed=0)


def test_no_file_has_an_erased_value_after_vacuum(fixture: DeltaFixture) -> None:
    erased(fixture)
    table = DeltaTable(fixture.table)
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    paths = [path for path in Path(fixture.table).rglob("*.parquet") if "_delta_log" not in path.parts]
    assert paths
    assert not {*IDS} & {at for path in paths for at in pyarrow.parquet.read_table(path)["id"].to_pylist()}


def test_neither_the_log_nor_the_new_entry_of_the_table_contains_the_value(tmp_path: Path) -> None:
    fixture = DeltaFixture(tmp_path, rows_per_file=1)
    fixture.made = 987_654_321
    fixture.arrive(1)
    fixture.made = 987_654_323
    fixture.arrive(1)
    fixture.run("first", drain=True)
    erased(fixture, "id = 987654321")
    logged = [stat.key for stat in fixture.store.list("") if b"987654321" in (fixture.store.read(stat.key) or b"")]
    assert [key for key in logged if not key.startswith(("sources/", "log/"))] == []
    assert not any(b'"minValues' in (fixture.store.read(key) or b"") for key in logged), "bounds of columns"
    newest = Path(fixture.table) / "_delta_log" / f"{DeltaTable(fixture.table).version():020d}.json"
    assert "987654321" not in newest.read_text()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_other_rows_keep_every_value_of_every_type(tmp_path_factory: Any, data: st.DataObject) -> None:
    rows = [data.draw(odd_rows(ids=ids)) for ids in (range(4), range(4, 8))]
    chosen = data.draw(st.sets(st.integers(0, 9), min_size=1))
    sink = DeltaSink(str(tmp_path_factory.mktemp("table")))
    schema = schema_of(**{name: kind for name, (kind, _, _) in COLUMNS.items()})
    for version, part in enumerate(rows):
        sink.publish(staged(sink, part, version, schema=schema))
    predicate = Predicate.parse(f"id IN ({', '.join(map(str, sorted(chosen)))})")
    done = sink.erase_rows(predicate, dry_run=False, before_commit=lambda: None)
    assert done is not None
    assert done.rows == len(chosen & {*range(8)})
    expected = [row for row in pa.concat_tables(rows).to_pylist() if row["id"] not in chosen]
    found = DeltaTable(sink.path).to_pyarrow_table().to_pylist()
    assert sorted(repr(sorted(row.items())) for row in found) == sorted(repr(sorted(row.items())) for row in expected)


def test_texts_nulls_and_partitions_are_selected_exactly(tmp_path: Path) -> None:
    sink = DeltaSink(str(tmp_path / "table"))
    names = ["a", "A", "a ", None, "á", "aa", "'"]
    rows = pa.table({"id": range(7), "p": ["x", None, "y", "x", None, "y", "x"], "v": names})
    write_deltalake(sink.path, rows, partition_by=["p"])
    write_deltalake(sink.path, pa.table({"id": [7, 8], "p": ["x", "y"]}), mode="append", schema_mode="merge")
    for where, gone in (("v = 'a'", {0}), ("v = ''''", {6}), ("p = 'y'", {2, 5, 8}), ("p = 'x' AND v IN ('b')", set())):
        sink.erase_rows(Predicate.parse(where), dry_run=False, before_commit=lambda: None)
        kept = {*DeltaTable(sink.path).to_pyarrow_table()["id"].to_pylist()}
        assert not kept & gone
    assert kept == {1, 3, 4, 7}


@pytest.mark.parametrize("where", ["id = '4'", "v = 4", "n = 1"])
def test_predicate_of_another_type_than_the_column_erases_nothing(tmp_path: Path, where: str) -> None:
    sink = DeltaSink(str(tmp_path / "table"))
    rows = pa.table({"id": [4], "v": ["4"], "n": [1.0]})
    sink.publish(staged(sink, rows, 0, schema=schema_of(id="long", v="string", n="double")))
    with pytest.raises(InvalidError, match="type of a column does not fit"):
        sink.erase_rows(Predicate.parse(where), dry_run=False, before_commit=lambda: None)
    assert DeltaTable(sink.path).version() == 1


def test_columns_that_the_table_lacks_select_nothing(fixture: DeltaFixture) -> None:
    with pytest.raises(InvalidError, match="no sink of the pipeline has the columns"):
        erased(fixture, "other = 1")


@pytest.mark.parametrize("property", ["delta.appendOnly", "delta.enableChangeDataFeed"])
def test_table_that_a_delete_by_this_library_would_break_is_refused_by_name(tmp_path: Path, property: str) -> None:
    path = str(tmp_path / "table")
    DeltaTable.create(path, pa.schema([("id", pa.int64())]), configuration={property: "true"})
    write_deltalake(path, pa.table({"id": [1, 2]}), mode="append")
    with pytest.raises(InvalidError, match=rf"(?s){property}.*run DELETE"):
        DeltaSink(path).erase_rows(Predicate.parse("id = 1"), dry_run=True, before_commit=lambda: None)
    assert (
        DeltaSink(path).erase_rows(Predicate.parse("id = 3"), dry_run=False, before_commit=lambda: None) is not None
    ), "no row is to be deleted"


def test_files_whose_new_rows_differ_are_not_committed(fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    real, before = delta_rewrite.write, DeltaTable(fixture.table).version()
    monkeypatch.setattr(
        delta_rewrite,
        "write",
        lambda target, rows, *more, **named: real(target, [next(iter(rows)).slice(1)], *more, **named),
    )
    with pytest.raises(DataError, match="rows of the new files differ"):
        erased(fixture)
    assert DeltaTable(fixture.table).version() == before
    assert len([*Path(fixture.table).glob("part-*.parquet")]) == 0, "the new files were deleted"


def test_erasure_does_not_replace_files_that_a_reprocessing_run_must_remove(fixture: DeltaFixture) -> None:
    """The run has checked that the table has its files. Without them, its publish would fail for ever."""
    racing = [True]

    real = Selector.select

    def select(self: Selector, *arguments: Any) -> Any:
        found = real(self, *arguments)
        if racing.pop() if racing else False:
            with suppress(Crash):
                fixture.run("fix", reprocessed=0, store=_WithoutReceipts(fixture.store))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Selector, "select", select)
        with pytest.raises(OpenVersionError, match="not published yet"):
            erased(fixture)
    fixture.run("fix", reprocessed=0)
    erased(fixture)
    check(fixture)


class _WithoutReceipts(CountingStore):
    """A process that uses this store is killed before it publishes."""

    def create(self, key: str, data: bytes) -> bool:
        created = super().create(key, data)
        if key.endswith(".c.json"):
            raise Crash
        return created


def test_table_with_column_mapping_is_refused_even_if_no_row_is_found(tmp_path: Path) -> None:
    """A file has the physical names of columns, so a search by the logical names would find nothing."""
    path = create_table(tmp_path / "table")
    write_deltalake(path, pa.table({"id": [1]}), mode="append")
    mapped = field("uid", **{"delta.columnMapping.id": 1, "delta.columnMapping.physicalName": "id"})
    configuration = {"delta.columnMapping.mode": "name", "delta.columnMapping.maxColumnId": "1"}
    _, metadata = definition([mapped], configuration=configuration)
    commit(path, DeltaTable(path).version() + 1, {"protocol": {"minReaderVersion": 2, "minWriterVersion": 5}}, metadata)
    with pytest.raises(InvalidError, match="columnMapping"):
        DeltaSink(str(path)).erase_rows(Predicate.parse("uid = 1"), dry_run=True, before_commit=lambda: None)


def test_refused_table_does_not_stop_the_erasure_from_other_sinks(tmp_path: Path) -> None:
    fixture = DeltaFixture(tmp_path)
    sinks = {"table": DeltaSink(fixture.table), "out": FilesSink(str(tmp_path / "out"), format="json")}
    fixture.arrive(8)
    fixture.run("first", drain=True, pipeline=fixture.pipeline(sinks=sinks))
    DeltaTable(fixture.table).alter.set_table_properties({"delta.appendOnly": "true"})
    done = erase(fixture.pipeline(sinks=sinks), where=WHERE, log=fixture.log(), engine=RowsEngine())
    assert [(each.sink, each.rows) for each in done.sinks] == [("out", 3)]
    assert len(done.refused) == 1
    assert "delta.appendOnly" in done.refused[0]
    assert done.refused_error is not None
    DeltaTable(fixture.table).alter.set_table_properties({"delta.appendOnly": "false"})
    done = erase(fixture.pipeline(sinks=sinks), where=WHERE, log=fixture.log(), engine=RowsEngine())
    assert ([(each.sink, each.rows) for each in done.sinks], done.refused) == ([("table", 3)], ())


def test_rows_of_a_skipped_version_are_deleted(tmp_path: Path) -> None:
    fixture = DeltaFixture(tmp_path)
    fixture.arrive(2)
    fixture.run("first")
    fixture.arrive(2)
    with suppress(Crash):
        fixture.run("second", store=_WithoutReceipts(fixture.store))
    skip(fixture.pipeline(), 1, sink="table", reason="x", log=fixture.log())
    staged_files = [*Path(fixture.table).glob("data/1/*/*.parquet")]
    assert len(staged_files) == 1
    erased(fixture, "id = 7")
    assert not any(path.exists() for path in staged_files)
    assert fixture.verdict().violations == []


def test_crash_at_each_write_to_the_table_is_repaired_by_a_repetition(tmp_path: Path, watch_delta_writes: Any) -> None:
    watching: list[Steps] = [Steps()]
    watch_delta_writes(lambda name: watching[-1](name))
    for at in (0, 1):
        fixture = DeltaFixture(tmp_path / str(at))
        fixture.arrive(8)
        fixture.run("first", drain=True)
        watching.append(Steps(at))
        with suppress(Crash):
            erased(fixture)
        assert watching[-1].died
        watching.append(Steps())
        erased(fixture)
        check(fixture)


def test_erasure_is_committed_after_entries_of_other_writers_but_not_without_its_files(
    fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeltaTable.create_write_transaction

    def first(act: Any) -> None:
        def committing(self: Any, *arguments: Any, **named: Any) -> Any:
            monkeypatch.setattr(DeltaTable, "create_write_transaction", real)
            act()
            return real(self, *arguments, **named)

        monkeypatch.setattr(DeltaTable, "create_write_transaction", committing)

    first(lambda: write_deltalake(fixture.table, pa.table({"id": [1_000]}), mode="append"))
    erased(fixture)
    assert fixture.rows() == fixture.expected - Counter(IDS) + Counter([1_000])
    first(lambda: DeltaTable(fixture.table).delete("id = 0"))
    with pytest.raises(UnavailableError, match="another writer changed"):
        erased(fixture, "id = 1")
    erased(fixture, "id = 1")
    assert fixture.rows() == fixture.expected - Counter([*IDS, 0, 1]) + Counter([1_000])


def test_reply_that_was_lost_counts_as_committed(fixture: DeltaFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    real = DeltaTable.create_write_transaction

    def losing(self: Any, *arguments: Any, **named: Any) -> Any:
        real(self, *arguments, **named)
        raise OSError("the connection was reset")

    monkeypatch.setattr(DeltaTable, "create_write_transaction", losing)
    with suppress(StreamsemError):
        assert [each.rows for each in erased(fixture).sinks] == [3]
    monkeypatch.undo()
    erased(fixture)
    check(fixture)
