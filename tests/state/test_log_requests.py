"""Log requests and bytes of a batch with state."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_streamsem import run_batch
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.state.settings import State, operator_state
from airflow_provider_streamsem.stores.contract import open_store
from airflow_provider_streamsem.testing.stores import CountingStore
from tests.pipeline.log_requests import requests
from tests.state.stateful_pipeline import arrive, outcome, pipeline
from tests.state.transforms import keyed


class Crash(Exception):
    """The process died."""


def counted(root: Path, run_key: str, state: State | None) -> list[tuple[str, str]]:
    """Run a batch, and return its log requests."""
    store = CountingStore(open_store(str(root / "log")))
    run_batch(pipeline(root, keyed, "update", state=state), run_key=run_key, log=CommitLog(store))
    return requests(store)


@pytest.mark.spark
def test_batch_with_state_costs_the_log_requests_of_one_without_and_at_most_two_reads_for_each_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: dict[bool, list[list[tuple[str, str]]]] = {}
    for has_state in (False, True):
        root, state = tmp_path / str(has_state), State(output_mode="update", partitions=7) if has_state else None
        sent[has_state] = []
        for number, events in enumerate([[(1, "a"), (2, "b")], [(3, "a")], [(4, "c")]]):
            arrive(root, number, events)
            if number == 2:
                with monkeypatch.context() as patched:
                    patched.setattr(CommitLog, "decide", dying)
                    with pytest.raises(Crash):
                        counted(root, f"run {number}", state)
            sent[has_state].append(counted(root, f"run {number}", state))
    read = ("read", "state")
    first, next_one, adopted = sent[True]
    assert [batch.count(read) for batch in (first, next_one, adopted)] == [7, 14, 7]
    for with_state, without in zip(sent[True], sent[False], strict=True):
        assert [request for request in with_state if request != read] == without


def dying(*_: object) -> None:
    raise Crash


@pytest.mark.prove
@pytest.mark.spark
def test_batch_writes_state_in_proportion_to_the_keys_that_it_changes_not_to_the_keys_stored(tmp_path: Path) -> None:
    """
    Each batch writes SST files with the rows of its keys, and for each partition a snapshot with a size that does not depend on the number of keys.

    RocksDB's compaction is not part of this test. It starts after a few more batches, and one batch in several rewrites more of the state.
    """
    spec = pipeline(tmp_path, keyed, "update")
    written: list[dict[str, int]] = []
    known: set[Path] = set()
    for number, keys in enumerate((20_000, 20, 2_000)):
        arrive(tmp_path, number, [(number, f"{n * 20_000 // keys:05d}") for n in range(keys)])
        assert run_batch(spec, run_key=f"run {number}").counts["written.out"] == keys
        files = {path for path in (tmp_path / "log" / "state").rglob("*") if path.suffix in (".sst", ".zip")}
        written.append(
            {
                kind: sum(path.stat().st_size for path in files - known if path.suffix == kind)
                for kind in (".sst", ".zip")
            }
        )
        known = files
    everything, few, tenth = (batch[".sst"] for batch in written)
    assert few < everything / 50
    assert few * 5 < tenth < everything / 3
    assert max(batch[".zip"] for batch in written) < 2 * 10_000, "two partitions"
    stored = operator_state(outcome(tmp_path, 2).state)
    assert stored is not None
    assert stored.operators[0].rows == 20_000
