"""A pipeline that applies change data to a Delta table: crashes at any step, vacuum, and a state that a restore has changed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_streamsem import Changes, DeltaSink, Pipeline
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import StepReportingStore, Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.connectors.delta.delta_fixture import DeltaFixture
from tests.connectors.staged_parquet.changed_table import changes_of, event, history, newest

CHANGES = Changes(keys=["k"], sequence_by=["at", "n"])
HISTORY = Changes(keys=["k"], sequence_by="n", stored_as_scd_type=2)


@dataclass
class ChangesFixture(DeltaFixture):
    changes: Changes = CHANGES

    def __post_init__(self) -> None:
        super().__post_init__()
        self.store = LocalStore(str(self.root / "log"))

    def pipeline(self, **changes: Any) -> Pipeline:
        sinks = {"table": DeltaSink(self.table, changes=self.changes)}
        return super().pipeline(**{"sinks": sinks, "transform": changes_of, **changes})

    def check_changes(self) -> None:
        assert self.verdict().violations == []
        events = [event(n) for n in sorted(self.expected)]
        if self.changes.keeps_history:
            found = [
                ((row["k"], row["__START_AT"]), (row["__END_AT"], row["n"], row["at"], row["v"]))
                for row in DeltaTable(self.table).to_pyarrow_table().to_pylist()
            ]
            expected = history([[(k, n, at, v) for k, at, n, v in events]])
            assert sorted(found) == sorted(expected.items())
            return
        rows = {r["k"]: (r["at"], r["n"], r["v"]) for r in DeltaTable(self.table).to_pyarrow_table().to_pylist()}
        assert rows == newest(events)


@pytest.mark.slow
@pytest.mark.parametrize("changes", [CHANGES, HISTORY], ids=["newest state", "history"])
def test_table_has_the_changes_of_each_key_after_a_crash_at_any_step(tmp_path: Path, changes: Changes) -> None:
    def run_to(at: int | None) -> tuple[ChangesFixture, Steps]:
        fixture, steps = ChangesFixture(tmp_path / f"{at}", changes=changes), Steps(at)
        fixture.arrive(2)
        fixture.run("earlier")
        fixture.arrive(3)
        with suppress(Crash):
            fixture.run("run", drain=True, store=StepReportingStore(fixture.store, steps), engine=RowsEngine(steps))
        return fixture, steps

    _, complete_run = run_to(None)
    assert "write tombstones" in complete_run.taken
    for at in range(len(complete_run.taken)):
        fixture, steps = run_to(at)
        assert steps.died
        fixture.run("another" if at % 2 else "run", drain=True)
        fixture.run("run", drain=True)
        fixture.check_changes()


def test_vacuum_deletes_tombstones_of_lost_attempts_and_of_expired_versions_only(tmp_path: Path) -> None:
    fixture = ChangesFixture(tmp_path)
    fixture.arrive(2)
    with pytest.raises(Crash):
        fixture.run("dies", engine=RowsEngine(Steps(5)))
    for n in range(6):
        fixture.arrive(2)
        fixture.run(f"run {n}", drain=True)
        vacuum(fixture.pipeline(), keep_versions=1, keep_days=0, log=fixture.log())
        fixture.check_changes()
    files = [*(tmp_path / "log" / "state").rglob("tombstones-table.parquet")]
    assert 0 < len(files) < 6


def test_tombstones_are_shown_and_those_that_were_deleted_or_changed_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = ChangesFixture(tmp_path)
    fixture.arrive(4)
    fixture.run("all", drain=True)
    fixture.check_changes()
    assert main(["show", fixture.store.url, "1"]) == 0
    assert "tombstones of table: 4 in 1 layers" in capsys.readouterr().out
    newest_file = max((tmp_path / "log" / "state").rglob("tombstones-table.parquet"))
    newest_file.write_bytes(newest_file.read_bytes()[:-1])
    assert any("tombstones" in str(violation) for violation in fixture.verdict().violations)
