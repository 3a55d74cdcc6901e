"""Which pipeline may run on which log and dataset."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_streamsem import FilesSink, Limits
from airflow_provider_streamsem.errors import (
    ConflictError,
    InvalidError,
    LogDamagedError,
)
from airflow_provider_streamsem.testing.rows import RowsEngine
from tests.worlds import World


def test_two_logs_over_one_dataset_are_refused(world: World, tmp_path: Path) -> None:
    world.arrive(1)
    world.run("a")
    other = World(tmp_path)
    other.made = world.made
    with pytest.raises(ConflictError, match="marked as the output of a log"):
        other.run("b")


def test_dataset_with_unknown_output_is_refused(world: World) -> None:
    world.arrive(1)
    (world.root / "out" / "data" / "0").mkdir(parents=True)
    (world.root / "out" / "data" / "0" / "x.json").write_text("{}")
    with pytest.raises(ConflictError, match="no log names"):
        world.run("a")
    assert world.log().read_pipeline() is None


def test_dataset_that_lost_its_mark_is_refused(world: World) -> None:
    world.arrive(1)
    world.run("a")
    (world.root / "out" / "_streamsem.json").unlink()
    with pytest.raises(LogDamagedError, match="lost its mark"):
        world.run("b")


def test_spec_with_other_guarded_fields_is_refused_and_names_them(world: World, tmp_path: Path) -> None:
    world.arrive(1)
    world.run("a")
    moved = world.pipeline(sinks={"out": FilesSink(path=str(tmp_path / "elsewhere"), format="json")})
    with pytest.raises(ConflictError, match="guarded fields differ"):
        world.run("b", pipeline=moved)
    with pytest.raises(ConflictError, match="another name"):
        world.run("b", pipeline=world.pipeline(name="other"))


def test_spec_with_other_free_fields_is_accepted_and_recorded(world: World) -> None:
    world.arrive(1)
    world.run("a")
    world.arrive(1)
    changed = world.pipeline(limits=Limits(max_files=7))
    world.run("b", pipeline=changed)
    assert world.opened().log.outcome(1)[0].spec == changed.spec_sha256  # type: ignore[index]
    assert world.opened().pipeline().limits.max_files == 7


def test_run_takes_the_log_of_its_pipeline_only(world: World, tmp_path: Path) -> None:
    from airflow_provider_streamsem import run_batch

    with pytest.raises(InvalidError, match="not the pipeline's"):
        run_batch(world.pipeline(), run_key="a", log=World(tmp_path / "other").log(), engine=RowsEngine())
