"""
A new kind of version is one class and one entry of the registry.

The kind of this test, a note, has a text and changes nothing. Every part of the package handles it without knowing it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import ClassVar

import pytest

from airflow_provider_streamsem import alter, rollback
from airflow_provider_streamsem.errors import LogDamagedError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.pipeline.spec.binding import bind
from airflow_provider_streamsem.pipeline.versions import commit as versions
from airflow_provider_streamsem.pipeline.versions.kept_states import oldest_kept
from airflow_provider_streamsem.protocol import codec
from airflow_provider_streamsem.protocol.entries import Kind, Outcome, Plan, Segment
from airflow_provider_streamsem.protocol.kinds.registry import KINDS
from airflow_provider_streamsem.protocol.segments import level_1
from airflow_provider_streamsem.protocol.view import fold
from airflow_provider_streamsem.readers.history import History
from airflow_provider_streamsem.stores.contract import Store
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.stores.memory import open_memory_store
from airflow_provider_streamsem.testing.stores import Crash, Fault, FaultyStore
from tests.cli.command import run as command
from tests.pipeline.compactions import altered, compacted, prepared
from tests.pipeline_fixture import PipelineFixture, PreparedFixture
from tests.protocol import samples
from tests.protocol.histories import History as RandomHistory
from tests.web.client import client_of, get

_NAMES = count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Note(Kind):
    """A note about a pipeline."""

    kind: ClassVar[str] = "note"
    name: ClassVar[str] = "note"
    label: ClassVar[str] = "noted"
    color: ClassVar[str] = "gray.solid"
    invariant: ClassVar[str] = "I99"
    is_announced: ClassVar[bool] = False
    text: str

    def describe(self) -> str:
        """Return the note."""
        return f"note: {self.text}"


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, Note.kind, Note)


@pytest.fixture
def fixture(tmp_path: Path) -> PipelineFixture:
    """Versions 0 to 3 have one file each, and one file is unread."""
    return prepared(tmp_path, store=open_memory_store(f"notes-{next(_NAMES)}"))


def noted(fixture: PipelineFixture, store: Store | None = None) -> Outcome | None:
    """Commit a note, as the next version."""
    opened = bind(fixture.pipeline(), fixture.log(store))
    log = opened.log
    head, _ = versions.settle(opened, log.newest_head(), "note")
    return versions.commit(log, head, versions.plan_maintenance(log, head, Note(text="hello"), run_key="note"))[1]


def test_note_is_a_version_that_changes_nothing(fixture: PipelineFixture) -> None:
    before = fixture.opened().view()
    outcome = noted(fixture)
    assert outcome is not None
    assert (outcome.version, outcome.work, outcome.newest) == (4, Note(text="hello"), {})
    after = fixture.opened().view()
    assert (after.files, after.counts, after.next) == (before.files, before.counts, before.next)
    fixture.run("rest")
    fixture.check()


WRITERS: dict[str, Callable[[PipelineFixture], object]] = {
    "run": lambda fixture: fixture.run("rest"),
    "reprocessing run": lambda fixture: fixture.run("fix", reprocessed=1),
    "alter": lambda fixture: alter(altered(fixture), log=fixture.log()),
    "rollback": lambda fixture: rollback(fixture.pipeline(), 3, log=fixture.log()),
    "compaction": compacted,
    "vacuum": lambda fixture: vacuum(fixture.pipeline(), keep_versions=1, keep_days=0, log=fixture.log()),
    "note": noted,
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("fault", [Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.LOST_REPLY])
def test_fault_at_any_request_of_a_note_changes_no_row(tmp_path: Path, writer: str, fault: Fault) -> None:
    at, is_done, start = 0, False, PreparedFixture(prepared(tmp_path))
    while not is_done:
        fixture = start.restore()
        store = FaultyStore(fixture.store, at, fault)
        with suppress(Crash, StreamsemError):
            noted(fixture, store)
        is_done, at = not store.reached, at + 1
        WRITERS[writer](fixture)
        fixture.ran = altered(fixture) if writer == "alter" else None
        assert fixture.verdict().violations == []
        assert fixture.visible() == Counter(range(15 if writer == "run" else 12))
    assert at > 5


@pytest.mark.parametrize("seed", range(5))
def test_view_with_notes_is_the_same_from_segments_and_from_outcomes(seed: int) -> None:
    outcomes = RandomHistory(seed, 250).outcomes
    without = fold(outcomes, initial_offsets={"files": 0})
    for at in range(7, 250, 11):  # a batch or another version would be missing, so only aborts become notes
        if not outcomes[at].committed:
            outcomes[at] = replace(outcomes[at], result="commit", work=Note(text=str(at)))
    folded = [level_1(i, outcomes[i * 100 : i * 100 + 100], "sha") for i in range(2)]
    assert codec.decode(Segment, "k", codec.encode(folded[0]).data) == folded[0]
    for parts in (outcomes, [folded[0], *outcomes[100:]], [*folded, *outcomes[200:]]):
        view = fold(parts, initial_offsets={"files": 0})
        assert (view.files, view.rewrites, view.counts, view.next) == (
            without.files,
            without.rewrites,
            without.counts,
            without.next,
        )


def test_note_with_ranges_output_or_another_state_is_damage() -> None:
    plan = samples.plan(1, work=Note(text="x"), ranges={})
    with pytest.raises(LogDamagedError, match="I99"):
        plan.work.check_plan(replace(plan, ranges={"files": (0, 1)}), before=None, next={})
    with pytest.raises(LogDamagedError, match="I99"):
        samples.outcome(plan)
    before, empty = samples.outcome(samples.plan(0)), {"sinks": {}, "counts": {}}
    plan.work.check_commit(plan, samples.outcome(plan, **empty), before=before)
    for changes in ({"state": {"dedup": []}}, {"schemas": {}}, {"spec": "other"}, {"work": Note(text="y")}):
        outcome = samples.outcome(plan, **empty, **changes)
        assert outcome.work is not None
        with pytest.raises(LogDamagedError, match="I99"):
            outcome.work.check_commit(plan, outcome, before=before)
    assert codec.decode(Plan, "k", codec.encode(plan).data) == plan


def test_notes_count_neither_for_the_kept_states_nor_for_the_announced_versions(fixture: PipelineFixture) -> None:
    for _ in range(5):
        noted(fixture)
    assert oldest_kept(fixture.log(), fixture.opened().head, 1) == 2
    result = fixture.run("rest")
    assert [version.version for version in result.completed] == []
    rows = History(fixture.opened()).summaries(limit=20)
    assert [row.changed for row in rows] == [()] * 10


def test_commands_and_the_page_show_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixture = PipelineFixture(tmp_path, store=LocalStore(str(tmp_path / "log")))
    fixture.arrive(1)
    fixture.run("first")
    noted(fixture)
    log = str(tmp_path / "log")
    (row, _) = json.loads(command(capsys, "log", log, "--json")[1])["versions"]
    assert (row["kind"], row["description"]) == ("note", "note: hello")
    assert "note: hello, commit" in command(capsys, "log", log, "--wide")[1]
    assert command(capsys, "show", log, "1")[1].startswith("version 1: note: hello, commit\n")
    assert command(capsys, "verify", log)[0] == 0
    client = client_of(log)
    shown = get(client, "/0/versions/1")["row"]["of_kind"]
    assert (shown["label"], shown["color"], shown["has_rows"]) == ("noted", "gray.solid", False)
    assert [each["kind"] for each in get(client, "/0/versions")["versions"]] == ["note", "batch"]
