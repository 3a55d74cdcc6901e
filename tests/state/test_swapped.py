"""A state file that is missing, truncated, or has the content of another one is detected before a batch builds on it."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import FilesSink, State, fork, read_state, reprocess, rollback, run_batch, verify
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.local import LocalStore
from tests.prepared_directory import PreparedDirectory
from tests.state.crashes import Crash, crash_at, run_and_crash_after_state_write
from tests.state.stateful_pipeline import arrive, counts, outcome, pipeline, start_new_process
from tests.state.transforms import joined, keyed

pytestmark = pytest.mark.spark

BATCHES = [[(1, key) for key in "abcd"], [(2, key) for key in "abcde"], [(3, key) for key in "abcde"]]
COUNTS = {"a": 4, "b": 4, "c": 4, "d": 4, "e": 3, "f": 1}
"""The counts after BATCHES and one more batch with each key."""


@pytest.fixture(scope="module")
def prepared(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> PreparedDirectory:
    """
    Run BATCHES in two partitions.

    An attempt of the last batch is lost, so the lost snapshot has the same number of batches as the committed one.
    """
    root = tmp_path_factory.mktemp("swapped") / "root"
    spec = pipeline(root, keyed, "update")
    for number, events in enumerate(BATCHES):
        arrive(root, number, events)
        if number == 2:
            with pytest.MonkeyPatch.context() as patched:
                run_and_crash_after_state_write(patched, spec, f"run {number}")
        run_batch(spec, run_key=f"run {number}")
    arrive(root, 9, [(9, key) for key in "abcdef"])
    return PreparedDirectory(root)


@pytest.fixture
def root(prepared: PreparedDirectory) -> Path:
    """The directory after BATCHES, in a new process."""
    start_new_process()
    return prepared.restore()


def files(root: Path, suffix: str) -> list[Path]:
    """The state files with a suffix, without Hadoop's checksums."""
    return sorted(path for path in (root / "log/state").rglob(f"*{suffix}") if not path.name.startswith("."))


def newest_snapshots(root: Path) -> list[Path]:
    newest = outcome(root, 2).state["spark"]
    names = {f"3_{id}.zip" for ids in newest["operators"][0]["ids"] for id in ids}
    return [path for path in files(root, ".zip") if path.name in names]


def named_ssts(snapshot: Path) -> list[Path]:
    with zipfile.ZipFile(snapshot) as archive:
        metadata = json.loads(archive.read("metadata").decode().partition("\n")[2])
    return sorted(snapshot.parent / "SSTs" / sst["dfsSstFileName"] for sst in metadata["sstFiles"])


def put(path: Path, data: bytes | None) -> None:
    """Replace or delete a file as in an object store, which has no checksum files of Hadoop."""
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    path.unlink() if data is None else path.write_bytes(data)


def swaps(root: Path, kind: str) -> Iterator[tuple[Path, bytes]]:
    """Each newest file of a kind with the content of each other file. Of SST files, only files of one size, as Spark compares the sizes."""
    snapshots = newest_snapshots(root)
    targets = snapshots if kind == "snapshot" else [sst for snapshot in snapshots for sst in named_ssts(snapshot)]
    for target in targets:
        for source in files(root, target.suffix):
            data = source.read_bytes()
            if data != target.read_bytes() and (kind == "snapshot" or len(data) == target.stat().st_size):
                yield target, data


@pytest.mark.parametrize("kind", ["snapshot", pytest.param("SST file", marks=pytest.mark.prove)])
def test_swapped_state_file_is_detected_before_a_batch_builds_on_it(spark: SparkSession, root: Path, kind: str) -> None:
    """The contents are those of other partitions, other batches and a lost attempt. Spark loads a snapshot of another batch without an error."""
    spec = pipeline(root, keyed, "update")
    tried = list(swaps(root, kind))
    assert len(tried) >= 4
    for target, data in tried:
        original = target.read_bytes()
        put(target, data)
        with pytest.raises(
            DataError, match=r"missing, truncated or swapped.*nothing became visible.*Do: restore"
        ) as raised:
            run_batch(spec, run_key="next")
        if kind == "snapshot":
            assert raised.value.fields["file"] == str(target)
        put(target, original)
    assert open_log(spec.log).head == 2
    run_batch(spec, run_key="next")
    assert counts(spark, root) == COUNTS


@pytest.mark.parametrize(
    "damage",
    ["missing", "flipped byte", *(pytest.param(each, marks=pytest.mark.prove) for each in ("truncated", "empty"))],
)
@pytest.mark.parametrize("kind", ["snapshot", "SST file"])
def test_damaged_state_file_gives_the_same_error(spark: SparkSession, root: Path, kind: str, damage: str) -> None:
    spec = pipeline(root, keyed, "update")
    snapshot = newest_snapshots(root)[0]
    file = snapshot if kind == "snapshot" else named_ssts(snapshot)[0]
    data = file.read_bytes()
    flipped = bytes([data[0] ^ 1]) + data[1:]  # in the first data block of an SST file
    put(file, {"missing": None, "truncated": data[:40], "empty": b"", "flipped byte": flipped}[damage])
    with pytest.raises(DataError, match=r"missing, truncated or swapped.*nothing became visible.*Do: restore"):
        run_batch(spec, run_key="next")
    file.write_bytes(data)
    run_batch(spec, run_key="next")
    assert counts(spark, root) == COUNTS


def test_swapped_snapshot_of_a_join_is_detected(tmp_path: Path) -> None:
    """A join has four state stores in each partition."""
    spec = pipeline(tmp_path, joined, "append")
    arrive(tmp_path, 0, [(1, "a"), (2, "b")])
    run_batch(spec, run_key="first")
    first, second, *others = files(tmp_path, ".zip")
    assert len(others) == 6
    put(first, second.read_bytes())
    arrive(tmp_path, 1, [(3, "a")])
    with pytest.raises(DataError, match=f"missing, truncated or swapped.*{first.name}"):
        run_batch(spec, run_key="second")


def test_swapped_snapshot_is_reported_and_not_reprocessed_rolled_back_forked_or_read(
    spark: SparkSession, root: Path
) -> None:
    spec = pipeline(root, keyed, "update")
    before = {path.name.partition("_")[0]: path for path in files(root, ".zip") if path.parent.name == "0"}
    put(before["2"], before["1"].read_bytes())
    found = [(finding.invariant, finding.version, finding.what) for finding in verify(spec).violations]
    assert found == [("I6", 1, "a file of the operators' state is missing, truncated or swapped")]
    with pytest.raises(InvalidError, match="are missing or were changed"):
        reprocess(spec, 2)
    with pytest.raises(InvalidError, match="are missing or were changed"):
        rollback(spec, 1)
    with pytest.raises(InvalidError, match="are missing or were changed"):
        read_state(spark, spec.log, version=1)
    with pytest.raises(DataError, match="are missing or were changed"):
        fork(
            spec.replace(log=str(root / "fork"), sinks={"out": FilesSink(path=str(root / "forked"))}),
            spec.log,
            version=1,
        )
    run_batch(spec, run_key="next")
    assert counts(spark, root) == COUNTS


def test_staged_attempt_with_a_swapped_snapshot_is_not_adopted(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = pipeline(tmp_path, keyed, "update")
    arrive(tmp_path, 0, [(1, "a"), (1, "b")])
    with monkeypatch.context() as patched:
        crash_at(patched, CommitLog, "decide", before=True)
        with pytest.raises(Crash):
            run_batch(spec, run_key="first")
    (attempt,) = open_log(spec.log).log.list_keys("attempts/")
    first, second = files(tmp_path, ".zip")
    put(first, second.read_bytes())
    run_batch(spec, run_key="first")
    assert outcome(tmp_path, 0).attempt_id != Path(attempt).stem
    arrive(tmp_path, 1, [(2, "a"), (2, "b")])
    run_batch(spec, run_key="second")
    assert counts(spark, tmp_path) == {"a": 2, "b": 2}


def test_vacuum_deletes_no_sst_file_by_a_swapped_snapshot(root: Path) -> None:
    """The snapshot of an earlier batch names fewer SST files than the kept state needs."""
    state = State(output_mode="update", partitions=2, keep_versions=1)
    spec = pipeline(root, keyed, "update", state=state)
    run_batch(spec, run_key="next")
    kept = sorted(path for path in files(root, ".zip") if path.name.startswith("3_"))
    (snapshot,) = [path for path in newest_snapshots(root) if path.parent.name == "0"]
    assert snapshot in kept
    needed = named_ssts(snapshot)
    (first,) = [path for path in files(root, ".zip") if path.name.startswith("1_") and path.parent.name == "0"]
    original = snapshot.read_bytes()
    put(snapshot, first.read_bytes())
    vacuum(spec)
    assert all(path.exists() for path in needed)
    put(snapshot, original)
    vacuum(spec)
    assert all(path.exists() for path in needed)
    assert not first.exists()


def test_batch_reads_each_snapshot_once_before_and_once_after_and_no_sst_file(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On disk, the sync of the files also reads them, as a dataset. On S3 there is no sync."""
    real_read, real_list, requests = LocalStore.read, LocalStore.list, []

    def read(self: LocalStore, key: str) -> bytes | None:
        requests.extend([key] if type(self) is LocalStore else [])
        return real_read(self, key)

    def listed(self: LocalStore, prefix: str, *given: Any, **named: Any) -> Any:
        requests.extend([prefix] if type(self) is LocalStore else [])
        return real_list(self, prefix, *given, **named)

    monkeypatch.setattr(LocalStore, "read", read)
    monkeypatch.setattr(LocalStore, "list", listed)
    run_batch(pipeline(root, keyed, "update"), run_key="next")
    sent = sorted(Path(key).name.partition("_")[0] for key in requests if key.startswith("state/"))
    assert sent == ["3", "3", "4", "4"]
    assert all(key.endswith(".zip") for key in requests if key.startswith("state/"))


def test_digest_of_each_snapshot_is_recorded_and_survives_a_copy_of_the_log(spark: SparkSession, root: Path) -> None:
    (operator,) = outcome(root, 2).state["spark"]["operators"]
    assert [[len(digest) for digest in digests] for digests in operator["digests"]] == [[16], [16]]
    shutil.copytree(root / "log", root / "copy")
    shutil.rmtree(root / "log")
    shutil.copytree(root / "copy", root / "log")
    run_batch(pipeline(root, keyed, "update"), run_key="next")
    assert counts(spark, root) == COUNTS
