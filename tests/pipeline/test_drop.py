"""A dropped fork leaves nothing, and the original as it was. A log that is not a fork, or that may be in use, is not dropped."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_streamsem import Dedup, DeltaSink, FilesSink, drop, verify
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.errors import ConflictError, InvalidError, StreamsemError
from airflow_provider_streamsem.pipeline.run.run import run_batch
from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.readers.files import open_log
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.dataset import LocalDataset
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.pipeline.fork_fixture import ForkFixture, rows

DEDUP = Dedup(keys=["id"], rows=10**6)


def files_below(*directories: Path) -> list[str]:
    return [name for directory in directories for _, _, names in os.walk(directory) for name in names]


@pytest.mark.parametrize("has_run", [True, False])
def test_drop_deletes_the_log_and_the_datasets_of_the_fork_only(tmp_path: Path, has_run: bool) -> None:
    forking = ForkFixture(tmp_path, dedup=DEDUP)
    forking.fork(1)
    if has_run:
        forking.run()
    directories = tmp_path / "fork-log", tmp_path / "forked"
    before = files_below(*directories)
    would = drop(forking.pipeline(), dry_run=True, log=forking.log())
    assert files_below(*directories) == before
    done = drop(forking.pipeline(), log=forking.log())
    assert (done, would.attempts) == (would, int(has_run))
    assert files_below(*directories) == []
    original = forking.original.pipeline(dedup=DEDUP)
    assert verify(open_log(forking.original.log(), pipeline=original)).violations == []
    forking.original.arrive(1)
    forking.run_original("later")
    forking.original.check()
    assert forking.fork(0).offsets == {"files": 2}
    forking.run()
    assert forking.ids() == rows(2, 6)


@pytest.mark.parametrize("spill_bytes", [codec.SPILL_BYTES, 8])
def test_drop_that_dies_at_any_deletion_is_completed_by_a_repeated_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spill_bytes: int
) -> None:
    monkeypatch.setattr(codec, "SPILL_BYTES", spill_bytes)
    deletions = [0]
    die_at = [-1]

    def dying(delete: Callable[[object, str], None]) -> Callable[[object, str], None]:
        def counted(self: object, key: str) -> None:
            deletions[0] += 1
            if deletions[0] == die_at[0]:
                raise Crash
            delete(self, key)

        return counted

    for kind, name in ((type(ForkFixture(tmp_path / "first", dedup=DEDUP).store), "delete"), (LocalDataset, "remove_tree")):  # fmt: skip
        monkeypatch.setattr(kind, name, dying(getattr(kind, name)))
    for at in count(1):
        forking = ForkFixture(tmp_path / str(at), dedup=DEDUP)
        forking.fork(1)
        forking.run()
        deletions[0], die_at[0] = 0, at
        with suppress(Crash):
            drop(forking.pipeline(), log=forking.log())
        reached, die_at[0] = deletions[0] >= at, -1
        if not reached:
            assert at > 10
            assert forking.log().read_pipeline() is None
            break
        if forking.store.read(keys.PIPELINE) is None:
            assert all(keys.is_spill(stat.key) for stat in forking.store.list(""))
            continue
        drop(forking.pipeline(), log=forking.log())
        assert files_below(tmp_path / str(at) / "fork-log", tmp_path / str(at) / "forked") == []
        forking.original.check()


def test_drop_is_refused_if_the_log_is_not_that_of_a_fork_or_may_be_in_use(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path, dedup=DEDUP)

    def refused(pipeline: object, log: object, error: type[StreamsemError], message: str) -> None:
        before = files_below(tmp_path)
        with pytest.raises(error, match=message):
            drop(pipeline, log=log)  # type: ignore[arg-type]
        assert files_below(tmp_path) == before

    original = forking.original
    refused(original.pipeline(dedup=DEDUP), original.log(), InvalidError, "not the log of a fork")
    refused(forking.pipeline(), forking.log(), InvalidError, "no log")
    forking.fork(1)
    refused(forking.pipeline(name="other"), forking.log(), ConflictError, "another name")
    table = {"table": DeltaSink(path=str(tmp_path / "table"))}
    refused(forking.pipeline(sinks=table), forking.log(), InvalidError, "publish outside the log")

    def die(step: str) -> None:
        raise Crash

    with suppress(Crash):
        run_batch(forking.pipeline(), run_key="dies", log=forking.log(), engine=RowsEngine(die))
    refused(forking.pipeline(), forking.log(), ConflictError, "a version of the fork is open")
    forking.run()
    others = forking.pipeline(sinks={"out": original.pipeline().sinks["out"]})
    refused(others, forking.log(), ConflictError, "belongs to another")
    elsewhere = forking.pipeline(sinks={"out": FilesSink(path=str(tmp_path / "elsewhere"), format="json")})
    refused(elsewhere, forking.log(), StreamsemError, "ownership marker is missing")


def test_drop_reports_a_run_that_writes_concurrently_and_can_be_repeated(tmp_path: Path) -> None:
    forking = ForkFixture(tmp_path)
    forking.fork(1)
    forking.run()

    class Written(type(forking.store)):  # type: ignore[misc]
        """A store to which another process writes while the objects are deleted."""

        def delete(self, key: str) -> None:
            super().delete(key)
            self.create(keys.attempt(0, "0" * 32), b"")

    store: Store = Written(forking.store.url)
    store.objects = forking.store.objects  # type: ignore[attr-defined]
    with pytest.raises(ConflictError, match="a run has written to the log while it was dropped"):
        drop(forking.pipeline(), log=dataclasses.replace(forking.log(), store=store))
    drop(forking.pipeline(), log=forking.log())
    assert list(forking.store.list("")) == []


FOREIGN = (
    "notes.txt",
    "other/pipeline.json",
    "other/log/99999999/999999999999-0.c.json",
    "out/_streamsem.json",
    "out/data/0/00000000000000000000000000000000/part-0.parquet",
    "log/notes.txt",
    "state/operators/notes.txt",
    "state/data/0/notes/a.parquet",
    "attempts/0/notes.json",
    "quarantine/0/notes/00000.jsonl",
    "sources/notes.json",
    "vacuumed/notes.json",
    "specs/notes.json",
)


@pytest.mark.parametrize("place", ["fork-log", "forked"])
@pytest.mark.parametrize("key", [*FOREIGN, "data/0/notes/a.json", "data/notes.json", "data/0/00000000/a.json"])
@pytest.mark.parametrize("has_run", [True, False])
def test_drop_deletes_nothing_if_objects_of_someone_else_are_at_its_locations(
    tmp_path: Path, place: str, key: str, has_run: bool
) -> None:
    forking = ForkFixture(tmp_path, dedup=DEDUP)
    forking.fork(1)
    if has_run:
        forking.run()
    (tmp_path / place / key).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place / key).write_text("not of the fork")
    before = files_below(tmp_path)
    for dry_run in (True, False):
        with pytest.raises(ConflictError, match="objects that the fork has not written; nothing was deleted") as raised:
            drop(forking.pipeline(), dry_run=dry_run, log=forking.log())
        assert raised.value.fields["objects"] == 1
        assert str(raised.value.fields["first"]).endswith(f"{key}']")
    assert files_below(tmp_path) == before
    (tmp_path / place / key).unlink()
    drop(forking.pipeline(), log=forking.log())
    assert files_below(tmp_path / "fork-log", tmp_path / "forked") == []


def test_every_object_of_a_log_is_one_that_drop_deletes(tmp_path: Path) -> None:
    """A key that :func:`keys.is_log_object` does not know would make each drop fail."""
    forking = ForkFixture(tmp_path, dedup=DEDUP)
    forking.fork(1)
    for _ in range(3):
        forking.run()
    unknown = [stat.key for stat in forking.store.list("") if not keys.is_log_object(stat.key)]
    assert unknown == []


def test_drop_command_reports_before_it_deletes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forking = ForkFixture(tmp_path, dedup=DEDUP)
    forking.fork(1)
    (tmp_path / "fork.toml").write_text(f"""
name = "fork"
log = "{tmp_path}/fork-log"
dedup = {{keys = ["id"], rows = 1000000}}
source = {{type = "files", path = "{tmp_path}/in", format = "json", schema = "id long"}}
sinks.out = {{type = "files", path = "{tmp_path}/forked", format = "json"}}
""")
    assert main(["drop", str(tmp_path / "fork.toml"), "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("would delete 0 attempts")
    assert forking.log().read_pipeline() is not None
    assert main(["drop", str(tmp_path / "fork.toml")]) == 0
    assert f"{tmp_path}/log stays as it is" in capsys.readouterr().out
    assert forking.log().read_pipeline() is None
    assert main(["drop", str(tmp_path / "fork.toml")]) == 2
