"""
A rewrite whose entry was forged or damaged. Readers, verify and vacuum apply the same check, so they agree, and vacuum deletes no file that is still needed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import LogDamagedError, StreamsemError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.protocol.entries import Outcome
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.testing.clock import ManualClock
from tests.pipeline.compactions import compacted, prepared
from tests.pipeline_fixture import PipelineFixture, PreparedFixture

REWRITE = 4
LATER = 1_700_000_000_000 + 30 * 86_400_000


@pytest.fixture(scope="module")
def compacted_fixture(tmp_path_factory: pytest.TempPathFactory) -> PreparedFixture:
    """Versions 0 to 3 are batches. Version 4 has stored their rows again."""
    fixture = prepared(tmp_path_factory.mktemp("forged"))
    compacted(fixture)
    return PreparedFixture(fixture)


def forge(fixture: PipelineFixture, change: Callable[[Rewrite], Rewrite]) -> Rewrite:
    """Replace the entry of the rewrite. Returns what it says now."""
    found = fixture.log().outcome(REWRITE)
    assert found is not None
    assert isinstance(found.work, Rewrite)
    work = change(found.work)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rewrite, "check_outcome", lambda self, outcome: None)
        forged: Outcome = replace(found, work=work)
    fixture.store.objects[keys.outcome(REWRITE)] = codec.encode(forged).data  # type: ignore[attr-defined]
    return work


def stored_ids(fixture: PipelineFixture) -> set[int]:
    """Return the ids in all files of the dataset, visible or not."""
    files = (path for path in (fixture.root / "out" / "data").rglob("*.json") if path.is_file())
    return {json.loads(line)["id"] for path in files for line in path.read_text().splitlines()}


def is_read(fixture: PipelineFixture) -> bool:
    try:
        fixture.opened().files()
    except LogDamagedError as error:
        return error.fields["invariant"] != "I23"
    return True


def vacuumed(fixture: PipelineFixture) -> None:
    log = CommitLog(fixture.store, ManualClock(LATER))
    vacuum(fixture.pipeline(), keep_versions=1, keep_days=0, log=log)


FORGED: dict[str, Callable[[Rewrite], Rewrite]] = {
    "no output": lambda found: replace(found, output=None),
    "other rows": lambda found: replace(found, rows=found.rows + 1),
    "other rows, as in the output": lambda found: replace(
        found, rows=found.rows - 1, output=replace(found.output, rows=found.rows - 1)  # type: ignore[type-var]
    ),
    "output without files": lambda found: replace(found, output=replace(found.output, files=())),  # type: ignore[type-var]
    "a commit twice": lambda found: replace(found, commits=(0, *found.commits)),
    "descending": lambda found: replace(found, commits=found.commits[::-1]),
    "no commits": lambda found: replace(found, commits=()),
    "itself": lambda found: replace(found, commits=(*found.commits, REWRITE)),
    "a later version": lambda found: replace(found, commits=(*found.commits, 7)),
    "another sink": lambda found: replace(found, sink="other"),
}  # fmt: skip


@pytest.mark.parametrize("kind", FORGED)
def test_forged_rewrite_is_refused_by_readers_and_vacuum_and_reported_by_verify(
    compacted_fixture: PreparedFixture, kind: str
) -> None:
    fixture = compacted_fixture.restore()
    before = stored_ids(fixture)
    files = {*(fixture.root / "out").rglob("*")}
    forge(fixture, FORGED[kind])
    assert not is_read(fixture)
    with pytest.raises(LogDamagedError):
        vacuumed(fixture)
    assert {*(fixture.root / "out").rglob("*")} == files
    assert "I23" in {violation.invariant for violation in fixture.verdict().violations}
    assert stored_ids(fixture) == before


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text('{"id": 0}\n')])
def test_vacuum_keeps_the_files_of_the_commits_if_a_file_of_the_rewrite_is_damaged(
    compacted_fixture: PreparedFixture, damage: Callable[[Path], object]
) -> None:
    fixture = compacted_fixture.restore()
    before = stored_ids(fixture)
    for file in fixture.opened().files():
        if file.version == REWRITE:
            damage(Path(file.path))
    with pytest.raises(LogDamagedError, match="files of a compaction are missing or were changed"):
        vacuumed(fixture)
    assert stored_ids(fixture) == before


def test_valid_rewrite_is_read_and_lets_vacuum_delete_the_files_of_its_commits(
    compacted_fixture: PreparedFixture,
) -> None:
    fixture = compacted_fixture.restore()
    before = stored_ids(fixture)
    vacuumed(fixture)
    assert len([*(fixture.root / "out" / "data").rglob("*.json")]) == 1
    assert stored_ids(fixture) == before
    assert set(fixture.visible()) == before


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    commits=st.lists(st.integers(-1, REWRITE + 1), max_size=6),
    rows=st.sampled_from([0, 3, 6, 9, 11, 12, 13]),
    output_rows=st.sampled_from([0, 3, 6, 9, 11, 12, 13]),
    has_output=st.booleans(),
)
def test_vacuum_loses_no_row_whatever_a_rewrite_says(
    compacted_fixture: PreparedFixture, commits: list[int], rows: int, output_rows: int, has_output: bool
) -> None:
    fixture = compacted_fixture.restore()
    before = stored_ids(fixture)

    def change(found: Rewrite) -> Rewrite:
        output = found.output if has_output else None
        return replace(
            found,
            commits=tuple(commits),
            rows=rows,
            output=None if output is None else replace(output, rows=output_rows),
        )

    forge(fixture, change)
    violated = {violation.invariant for violation in fixture.verdict().violations}
    assert is_read(fixture) == ("I23" not in violated)
    with suppress(StreamsemError):
        vacuumed(fixture)
    assert stored_ids(fixture) == before
