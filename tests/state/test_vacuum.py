"""Vacuum deletes exactly the operators' state that no retained version needs."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Pipeline, State, reprocess, run_batch, verify
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.run.run import Run, plan_run
from airflow_provider_streamsem.state.files import unneeded
from airflow_provider_streamsem.state.settings import operator_state
from airflow_provider_streamsem.stores.contract import open_store
from tests.prepared_directory import PreparedDirectory
from tests.state.crashes import Crash, run_and_crash_after_state_write
from tests.state.stateful_pipeline import arrive, counts, outcome, pipeline
from tests.state.transforms import keyed

pytestmark = pytest.mark.spark

BATCHES = 6
KEPT = State(output_mode="update", partitions=2, keep_versions=2)


def counting(root: Path) -> Pipeline:
    return pipeline(root, keyed, "update", state=KEPT)


def snapshots(root: Path) -> dict[Path, set[str]]:
    """snapshot → the SST files that it names"""
    found = {}
    for path in (root / "log/state/operators").rglob("*.zip"):
        with zipfile.ZipFile(path) as archive:
            _, _, metadata = archive.read("metadata").decode().partition("\n")
        found[path] = {sst["dfsSstFileName"] for sst in json.loads(metadata)["sstFiles"]}
    return found


def batches_of(path: Path) -> int:
    return int(path.name.partition("_")[0])


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PreparedDirectory:
    """Run a pipeline with six versions. In two of them, the first attempt wrote its state and died."""
    root = tmp_path_factory.mktemp("vacuum") / "root"
    for number in range(BATCHES):
        arrive(root, number, [(number, "a"), (number, f"k{number}")])
        if number in (0, 2):
            with pytest.MonkeyPatch.context() as patched:
                run_and_crash_after_state_write(patched, counting(root), f"run {number}")
        run_batch(counting(root), run_key=f"run {number}")
    return PreparedDirectory(root)


@pytest.fixture
def root(prepared: PreparedDirectory) -> Path:
    """The directory of the pipeline with six versions."""
    return prepared.restore()


def test_vacuum_keeps_only_the_state_of_the_retained_versions(spark: SparkSession, root: Path) -> None:
    before = len(snapshots(root))
    planned = vacuum(counting(root), dry_run=True)
    assert len(snapshots(root)) == before
    assert vacuum(counting(root)) == planned
    left = snapshots(root)
    assert {batches_of(path) for path in left} == {BATCHES - 2, BATCHES - 1, BATCHES}
    stored = {path.name for path in root.rglob("*.sst")}
    assert set().union(*left.values()) == stored, "each SST file that a snapshot names exists, and no other"
    assert len({path.parent.parent.parent for path in left}) == 1, "the root of the first attempt that lost is empty"
    assert vacuum(counting(root)).keys == ()

    arrive(root, BATCHES, [(BATCHES, "a"), (BATCHES, "k0")])
    run_batch(counting(root), run_key="next")
    assert counts(spark, root) == {"a": BATCHES + 1, "k0": 2, **{f"k{n}": 1 for n in range(1, BATCHES)}}
    assert verify(str(root / "log")).violations == []


def test_only_versions_whose_state_is_kept_can_be_reprocessed(spark: SparkSession, root: Path) -> None:
    vacuum(counting(root))
    for version in (BATCHES - 2, BATCHES - 1):
        reprocess(counting(root), version)
    with pytest.raises(InvalidError, match="because vacuum deleted them"):
        reprocess(counting(root), BATCHES - 3)
    assert plan_run(counting(root), run_key="idle") is not None, "no version is left open"
    assert counts(spark, root) == {"a": BATCHES, **{f"k{n}": 1 for n in range(BATCHES)}}


@pytest.mark.prove
def test_vacuum_that_dies_after_any_deletion_loses_no_needed_file_and_is_completed(root: Path) -> None:
    original = root / "log"
    state = operator_state(outcome(root, BATCHES - 3).state)
    assert state is not None
    keys = [stat.key for stat in unneeded(open_store(str(original)), state)]
    needed = {p.name for path in snapshots(root) if batches_of(path) >= state.batches for p in (path,)}
    assert keys
    for died_after in range(len(keys) + 1):
        copy = root / f"copy {died_after}"
        shutil.copytree(original, copy / "log")
        store = open_store(str(copy / "log"))
        for key in keys[:died_after]:
            store.delete(key)
        for stat in unneeded(store, state):
            store.delete(stat.key)
        left = snapshots(copy)
        assert {path.name for path in left} >= needed
        stored = {path.name for path in copy.rglob("*.sst")}
        assert set().union(*left.values()) == stored
        shutil.rmtree(copy)


@pytest.mark.prove
def test_open_reprocessing_run_with_partly_deleted_state_is_aborted_by_the_next_run(
    spark: SparkSession, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vacuum died between an SST file and its snapshot, and the process of the reprocessing run has died."""

    def dies(*_: object, **__: object) -> None:
        raise Crash

    with monkeypatch.context() as patched:
        patched.setattr(Run, "close_version", dies)
        with pytest.raises(Crash):
            reprocess(counting(root), 2, run_key="fix")
    state = operator_state(outcome(root, 1).state)
    assert state is not None
    found = snapshots(root)
    needed = set().union(*(ssts for path, ssts in found.items() if batches_of(path) == BATCHES))
    only_older = [
        path.parent / "SSTs" / name
        for path, ssts in found.items()
        if batches_of(path) == state.batches
        for name in ssts - needed
    ]
    assert only_older
    for sst in only_older:
        sst.unlink(missing_ok=True)
    arrive(root, BATCHES, [(BATCHES, "z")])
    run_batch(counting(root), run_key="next")
    assert outcome(root, BATCHES).result == "abort"
    assert counts(spark, root)["z"] == 1
    with pytest.raises(InvalidError, match="because vacuum deleted them"):
        reprocess(counting(root), 2)


@pytest.mark.prove
def test_state_without_its_oldest_snapshot_is_not_vacuumed(root: Path) -> None:
    state = operator_state(outcome(root, BATCHES - 3).state)
    assert state is not None
    for path in snapshots(root):
        if batches_of(path) == state.batches:
            path.unlink()
    kept = [path for path in snapshots(root) if state.root in path.parts]
    assert [finding.version for finding in verify(counting(root)).violations] == [BATCHES - 3]
    vacuum(counting(root))
    assert all(path.exists() for path in kept)
