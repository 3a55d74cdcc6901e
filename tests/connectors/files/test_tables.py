"""A files source is refused for a path in a table, because only the table's own log says which files are current."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_streamsem import FilesSink, FilesSource, run_batch
from airflow_provider_streamsem.connectors.files.tables import refuse_table
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError, UnavailableError
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.contract import UnknownResultError
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.pipeline_fixture import PipelineFixture

MARKS = {
    "_streamsem.json": "the dataset of a pipeline",
    "_delta_log/00000000000000000000.json": "a Delta table",
    ".hoodie/hoodie.properties": "a Hudi table",
    "metadata/00000-0a1b2c3d-0000-4000-8000-0a1b2c3d4e5f.metadata.json": "an Iceberg table",
    "metadata/v1.metadata.json": "an Iceberg table",
}


@pytest.mark.parametrize("below", ["", "data", "data/day=1/hour=2"])
@pytest.mark.parametrize("mark", MARKS)
def test_path_in_a_table_is_refused_and_the_table_is_reported(mark: str, below: str, tmp_path: Path) -> None:
    file = tmp_path / "table" / mark
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    with pytest.raises(InvalidError, match=MARKS[mark]) as caught:
        refuse_table(str(tmp_path / "table" / below))
    assert caught.value.fields["table"] == str(tmp_path / "table")


@pytest.mark.parametrize("mark", MARKS)
def test_selected_file_of_a_table_below_the_path_is_refused_and_one_beside_the_table_is_read(
    mark: str, tmp_path: Path
) -> None:
    for path in (f"in/db/table/{mark}", "in/db/a.json"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"id": 1}')
    fixture = PipelineFixture(tmp_path)
    fixture.run(
        "a",
        pipeline=fixture.pipeline(
            source=FilesSource(path=str(tmp_path / "in"), format="json", schema="id long", glob="a.*")
        ),
    )
    (tmp_path / "in/db/table/b.json").write_text('{"id": 2}')
    other = fixture.pipeline(
        source=FilesSource(path=str(tmp_path / "in"), format="json", schema="id long", glob="*.json"),
        log=str(tmp_path / "log"),
        sinks={"out": FilesSink(str(tmp_path / "o"))},
    )
    with pytest.raises(InvalidError, match="contains a table") as caught:
        run_batch(other, run_key="b", engine=RowsEngine())
    assert caught.value.fields["table"] == str(tmp_path / "in/db/table")


def test_path_beside_tables_or_with_an_unrelated_metadata_directory_is_accepted(tmp_path: Path) -> None:
    for path in ("in/metadata/x.metadata.json", "in/a.json", "table/_delta_log/0.json"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("{}")
    refuse_table(str(tmp_path / "in"))
    refuse_table(str(tmp_path / "absent"))


def test_table_with_many_snapshots_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t/metadata").mkdir(parents=True)
    for number in range(1_001):
        (tmp_path / f"t/metadata/snap-{number}.avro").touch()
    (tmp_path / "t/metadata/v7.metadata.json").touch()
    with pytest.raises(InvalidError, match="an Iceberg table"):
        refuse_table(str(tmp_path / "t/data"))


def test_symlink_to_a_table_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t/_delta_log").mkdir(parents=True)
    (tmp_path / "t/_delta_log/0.json").touch()
    (tmp_path / "t/day=1").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "t/day=1")
    with pytest.raises(InvalidError, match="a Delta table"):
        refuse_table(str(tmp_path / "link"))


def test_unanswered_table_check_is_retried_and_a_forbidden_one_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "_delta_log/0.json").touch()

    def stat(self: LocalStore, key: str) -> None:
        raise error

    monkeypatch.setattr(LocalStore, "stat", stat)
    error: Exception = UnknownResultError("k")
    with pytest.raises(UnavailableError):
        refuse_table(str(tmp_path))
    error = StoreRefusedError("no")
    refuse_table(str(tmp_path))


def test_new_pipeline_on_the_dataset_of_another_pipeline_writes_nothing(tmp_path: Path) -> None:
    fixture = PipelineFixture(tmp_path)
    fixture.arrive(1)
    fixture.run("a")
    dataset = next(iter(fixture.pipeline().sinks.values())).location
    chained = fixture.pipeline(
        log=str(tmp_path / "other"),
        source=FilesSource(path=dataset, format="json", schema="id long"),
        sinks={"out": FilesSink(str(tmp_path / "chained"))},
    )
    with pytest.raises(InvalidError, match="read_committed"):
        run_batch(chained, run_key="b", engine=RowsEngine())
    assert open_log(str(tmp_path / "other")).head == -1
