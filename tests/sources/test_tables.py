"""A source of files is refused where only a table's own log says which files count."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_streamsem import FilesSink, FilesSource, run_batch
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.sources.tables import refuse_table
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.worlds import World

MARKS = {
    "_streamsem.json": "the dataset of a pipeline",
    "_delta_log/00000000000000000000.json": "a Delta table",
    ".hoodie/hoodie.properties": "a Hudi table",
    "metadata/00000-0a1b2c3d-0000-4000-8000-0a1b2c3d4e5f.metadata.json": "an Iceberg table",
    "metadata/v1.metadata.json": "an Iceberg table",
}


@pytest.mark.parametrize("below", ["", "data", "data/day=1/hour=2"])
@pytest.mark.parametrize("mark", MARKS)
def test_path_in_a_table_is_refused_by_the_tables_name(mark: str, below: str, tmp_path: Path) -> None:
    made = tmp_path / "table" / mark
    made.parent.mkdir(parents=True)
    made.write_text("{}")
    with pytest.raises(InvalidError, match=MARKS[mark]) as caught:
        refuse_table(str(tmp_path / "table" / below))
    assert caught.value.fields["table"] == str(tmp_path / "table")


@pytest.mark.parametrize("mark", MARKS)
def test_file_of_a_table_below_the_path_is_refused_and_one_beside_it_is_taken(mark: str, tmp_path: Path) -> None:
    for path in (f"in/db/table/{mark}", "in/db/a.json"):
        made = tmp_path / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text('{"id": 1}')
    world = World(tmp_path)
    world.run(
        "a",
        pipeline=world.pipeline(
            source=FilesSource(path=str(tmp_path / "in"), format="json", schema="id long", glob="a.*")
        ),
    )
    (tmp_path / "in/db/table/b.json").write_text('{"id": 2}')
    other = world.pipeline(
        source=FilesSource(path=str(tmp_path / "in"), format="json", schema="id long", glob="*.json"),
        log=str(tmp_path / "log"),
        sinks={"out": FilesSink(str(tmp_path / "o"))},
    )
    with pytest.raises(InvalidError, match="holds a table") as caught:
        run_batch(other, run_key="b", engine=RowsEngine())
    assert caught.value.fields["table"] == str(tmp_path / "in/db/table")


def test_path_beside_tables_and_with_a_directory_of_metadata_is_taken(tmp_path: Path) -> None:
    for path in ("in/metadata/x.metadata.json", "in/a.json", "table/_delta_log/0.json"):
        made = tmp_path / path
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("{}")
    refuse_table(str(tmp_path / "in"))
    refuse_table(str(tmp_path / "absent"))


def test_new_pipeline_over_the_dataset_of_another_one_writes_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.arrive(1)
    world.run("a")
    dataset = next(iter(world.pipeline().sinks.values())).place
    chained = world.pipeline(
        log=str(tmp_path / "other"),
        source=FilesSource(path=dataset, format="json", schema="id long"),
        sinks={"out": FilesSink(str(tmp_path / "chained"))},
    )
    with pytest.raises(InvalidError, match="read_committed"):
        run_batch(chained, run_key="b", engine=RowsEngine())
    assert open_log(str(tmp_path / "other")).head == -1
