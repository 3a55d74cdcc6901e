"""The local store: errors of the file system, URLs, permissions."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError
from airflow_provider_streamsem.stores.contract import UnknownResultError, open_store, split_url
from airflow_provider_streamsem.stores.dataset import LocalDataset
from airflow_provider_streamsem.stores.local import LocalStore, process_umask


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "root"))


def failing(code: int) -> Any:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.EDQUOT])
@pytest.mark.parametrize("call", ["fsync", "link"])
def test_create_that_the_file_system_refuses_writes_nothing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, code: int, call: str
) -> None:
    store.create("dir/first", b"1")
    with monkeypatch.context() as patched:
        patched.setattr(f"airflow_provider_streamsem.stores.local.os.{call}", failing(code))
        with pytest.raises(StoreRefusedError, match=errno.errorcode[code]):
            store.create("dir/second", b"2")
    assert store.read("dir/second") is None
    assert os.listdir(Path(store.root) / "dir") == ["first"]
    assert store.create("dir/second", b"2")


def test_other_errors_are_unknown_results(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_provider_streamsem.stores.local.os.link", failing(errno.EIO))
    with pytest.raises(UnknownResultError):
        store.create("k", b"1")


def test_failed_sync_of_the_directory_is_an_unknown_result_although_the_object_was_created(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.create("dir/first", b"1")
    with monkeypatch.context() as patched:
        real = os.fsync

        def fail_for_directories(descriptor: int) -> None:
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                raise OSError(errno.EIO, "sync failed")
            real(descriptor)

        patched.setattr("airflow_provider_streamsem.stores.local.os.fsync", fail_for_directories)
        with pytest.raises(UnknownResultError):
            store.create("dir/second", b"2")
    assert not store.create("dir/second", b"2")
    assert store.read("dir/second") == b"2"


def test_writer_that_lost_a_create_syncs_the_directory_of_the_winner(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner may die before its own sync, and the loser continues with the object."""
    store.create("dir/first", b"1")
    real_link, real_sync, synced = os.link, os.fsync, []

    def lose(source: str, target: str) -> None:
        real_link(source, target)
        raise FileExistsError(errno.EEXIST, "exists")

    def record(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        real_sync(descriptor)

    monkeypatch.setattr("airflow_provider_streamsem.stores.local.os.link", lose)
    monkeypatch.setattr("airflow_provider_streamsem.stores.local.os.fsync", record)
    assert not store.create("dir/second", b"2")
    assert synced[-1] == os.path.join(store.root, "dir")


def test_object_whose_writer_died_before_the_link_is_never_visible(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException): ...

    def die(*args: object) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr("airflow_provider_streamsem.stores.local.os.link", die)
        patched.setattr("airflow_provider_streamsem.stores.local.os.unlink", die)
        with pytest.raises(Died):
            store.create("dir/k", b"1" * 10)
    assert any(name.startswith(".streamsem-partial-") for name in os.listdir(Path(store.root) / "dir"))
    assert store.read("dir/k") is None
    assert list(store.list("")) == []
    assert store.create("dir/k", b"2")


def test_read_without_permission_is_refused(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create("k", b"1")
    monkeypatch.setattr("builtins.open", failing(errno.EACCES))
    with pytest.raises(StoreRefusedError):
        store.read("k")


@pytest.mark.parametrize("key", ["", "/abs", "a//b", "a/../b", "./a", "a/"])
def test_keys_outside_the_root_are_refused(store: LocalStore, key: str) -> None:
    with pytest.raises(InvalidError):
        store.create(key, b"")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "relative/path",
        "ftp://x/y",
        "s3://",
        "s3://key:secret@bucket/x",
        "s3://key:secret@[bucket/x",
        "me@x:secret@bucket/x",
        "s3://bucket]/x?token=secret",
        "s3://bucket/x?y=1",
        "file://host/x",
        "/",
        None,
        5,
    ],
)
def test_invalid_url_is_refused_without_quoting_a_secret(url: Any) -> None:
    with pytest.raises(InvalidError) as caught:
        open_store(url)
    assert "secret" not in str(caught.value)


def test_equivalent_urls_are_parsed_equally() -> None:
    assert split_url("/a/b/") == split_url("file:///a/b") == split_url("file://localhost/a//b") == ("file", "/a/b")
    assert split_url("s3://bucket/a/") == ("s3", "bucket/a")
    assert split_url("memory://x") == ("memory", "x")


@pytest.fixture
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    try:
        yield request.param
    finally:
        os.umask(before)


def modes(root: Path) -> set[int]:
    """Return the permission bits of a directory and of all directories and files below it."""
    return {path.stat().st_mode & 0o777 for path in (root, *root.rglob("*"))}


@pytest.mark.parametrize(
    ("umask", "log", "dataset"),
    [
        (0o022, {0o750, 0o640}, {0o755, 0o644}),
        (0o002, {0o770, 0o660}, {0o775, 0o664}),
        (0o077, {0o700, 0o600}, {0o700, 0o600}),
        (0o000, {0o770, 0o660}, {0o777, 0o666}),
    ],
    indirect=["umask"],
)
def test_log_denies_access_to_other_users_and_the_umask_sets_the_other_permissions(
    umask: int, log: set[int], dataset: set[int], tmp_path: Path
) -> None:
    LocalStore(str(tmp_path / "a" / "log")).create("quarantine/0/x/00000.jsonl", b"{}")
    LocalDataset(str(tmp_path / "a" / "out")).create("_streamsem.json", b"{}")
    assert modes(tmp_path / "a" / "log") == log
    assert modes(tmp_path / "a" / "out") == dataset
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o777 & ~umask, (
        "the directory above the log must have the permissions of the umask"
    )
    assert process_umask() == umask


@pytest.mark.parametrize("umask", [0o002], indirect=True)
def test_directories_of_a_log_keep_the_group_of_a_shared_directory(umask: int, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2770)
    LocalStore(str(tmp_path / "shared" / "log")).create("log/0/a.json", b"{}")
    created = tmp_path / "shared" / "log" / "log"
    assert created.stat().st_mode & 0o7777 == 0o2770
    assert created.stat().st_gid == (tmp_path / "shared").stat().st_gid
