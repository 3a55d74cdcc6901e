"""The ids of a layer are those that were written, from the store and from the local copy, however the copy was lost or damaged."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from airflow_provider_streamsem.deduplication import layers
from airflow_provider_streamsem.deduplication.ids import Ids, in_order
from airflow_provider_streamsem.deduplication.layers import LayerFiles
from airflow_provider_streamsem.errors import StageError
from airflow_provider_streamsem.state.layers import Layer
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.stores import CountingStore

ATTEMPT = "a" * 32


@pytest.fixture
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory of the copies, in a directory of the test."""
    monkeypatch.setattr(layers.tempfile, "gettempdir", lambda: str(tmp_path))
    return tmp_path / f"streamsem-{os.getuid()}"


def ids_of(seed: int, count: int = 1_000) -> Ids:
    chance = np.random.default_rng(seed)
    high, low = (chance.integers(0, 1 << 64, count, np.uint64) for _ in range(2))
    return in_order(high, low, chance.integers(0, 10, count, np.int64))


def same(first: Ids, parts: list[Ids]) -> bool:
    columns = [np.concatenate([getattr(part, name) for part in parts]) for name in ("high", "low", "at_ms")]
    return all(map(np.array_equal, (first.high, first.low, first.at_ms), columns))


def files_of(log: Path, **limits: int) -> LayerFiles:
    """Return files of 400 rows, each of which has a copy."""
    return LayerFiles(str(log), **{"rows_of_file": 400, "copied_bytes": 0, **limits})


def stored(log: Path, ids: Ids, **limits: int) -> Layer:
    written = files_of(log, **limits).write(ids, 3, ATTEMPT)
    assert [file.rows for file in written.files] == [400, 400, 200]
    return Layer(newest_ms=9, rows=written.rows, files=written.files)


def counted(log: Path) -> tuple[LayerFiles, CountingStore]:
    files = files_of(log)
    store = CountingStore(LocalStore(f"{log}/state"))
    files._store = store  # type: ignore[assignment]
    return files, store


def truncated(copy: Path) -> None:
    copy.write_bytes(copy.read_bytes()[:-8])


@pytest.mark.parametrize(
    ("damage", "reads"), [(None, 0), (Path.unlink, 3), (truncated, 3)], ids=["none", "lost", "truncated"]
)
def test_ids_are_those_written_and_a_lost_copy_is_made_again(
    copies: Path, tmp_path: Path, damage: Callable[[Path], None] | None, reads: int
) -> None:
    ids = ids_of(1)
    layer = stored(tmp_path / "log", ids)
    assert len([*copies.iterdir()]) == 3
    for copy in [*copies.iterdir()] if damage else []:
        damage(copy)  # type: ignore[misc]
    files, store = counted(tmp_path / "log")
    assert same(ids, files.read([layer]))
    assert store.requests["read"] == reads
    assert same(ids, files.read([layer]))
    assert store.requests["read"] == reads


def test_copies_of_two_logs_with_equal_keys_are_different(copies: Path, tmp_path: Path) -> None:
    first, second = ids_of(1), ids_of(2)
    logs = {tmp_path / "one": first, tmp_path / "two": second}
    written = {log: stored(log, ids) for log, ids in logs.items()}
    for log, ids in logs.items():
        assert same(ids, files_of(log).read([written[log]]))


@pytest.mark.parametrize("what", ["open to others", "a link", "a file"])
def test_directory_that_others_can_write_to_is_not_used(
    copies: Path, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    if what == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        copies.symlink_to(tmp_path / "elsewhere")
    elif what == "a file":
        copies.write_text("")
    else:
        copies.mkdir()
        copies.chmod(0o777)
    ids = ids_of(1)
    assert same(ids, files_of(tmp_path / "log").read([stored(tmp_path / "log", ids)]))
    assert what == "a file" or [*copies.iterdir()] == []
    assert any("no local copy" in message for message in caplog.messages)


def test_directory_that_another_user_has_replaced_is_not_used(copies: Path, tmp_path: Path) -> None:
    ids = ids_of(1)
    layer = stored(tmp_path / "log", ids)
    copies.chmod(0o777)
    for copy in copies.iterdir():
        copy.write_bytes(bytes(copy.stat().st_size))
    assert same(ids, files_of(tmp_path / "log").read([layer]))


def test_full_disk_leaves_no_part_of_a_copy(copies: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, path: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ids = ids_of(1)
    with monkeypatch.context() as patch:
        patch.setattr(layers.os, "replace", full)
        layer = stored(tmp_path / "log", ids)
    assert [*copies.iterdir()] == []
    assert same(ids, files_of(tmp_path / "log").read([layer]))


def test_oldest_copies_are_deleted_if_all_are_too_large(copies: Path, tmp_path: Path) -> None:
    for number in range(3):
        for copy in copies.iterdir() if copies.exists() else ():
            os.utime(copy, (copy.stat().st_mtime - 100,) * 2)
        stored(tmp_path / f"log{number}", ids_of(number), most_copies_bytes=24 * 1_000)
        left = sum(copy.stat().st_size for copy in copies.iterdir())
        assert left <= 24 * 1_000
    assert same(ids_of(2), files_of(tmp_path / "log2").read([stored_layer(tmp_path / "log2")]))


def stored_layer(log: Path) -> Layer:
    files = layers.layers_dataset(str(log)).collect(3, ATTEMPT).files
    return Layer(newest_ms=9, rows=1_000, files=files)


def test_missing_or_damaged_file_is_refused(copies: Path, tmp_path: Path) -> None:
    layer = stored(tmp_path / "log", ids_of(1))
    for copy in copies.iterdir():
        copy.unlink()
    first, last = (tmp_path / "log" / "state" / layer.files[n].key for n in (0, 2))
    data = first.read_bytes()
    flipped = bytearray(data)
    flipped[len(data) // 3] ^= 1
    for damaged in (last.read_bytes(), bytes(flipped), data[:-1], b""):
        first.write_bytes(damaged)
        with pytest.raises(StageError, match="is damaged"):
            files_of(tmp_path / "log").read([layer])
        assert len([*copies.iterdir()]) <= 2  # no copy of the damaged file
    first.unlink()
    with pytest.raises(StageError, match="is missing"):
        files_of(tmp_path / "log").read([layer])
