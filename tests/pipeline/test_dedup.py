"""
Deduplication by key.

No duplicate within the TTL is written, after a crash at any step. The deduplication state is bounded, and each outcome
commits it together with the rows of the batch.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_streamsem import guarantee
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.deduplication.state import layers_of, state_of
from airflow_provider_streamsem.errors import ConflictError, InvalidError
from airflow_provider_streamsem.pipeline.maintenance.vacuum import vacuum
from airflow_provider_streamsem.state.layers import Layer, absorbed
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.steps import StepReportingStore, Steps
from airflow_provider_streamsem.testing.stores import Crash
from tests.pipeline.repeating_fixture import RepeatingFixture


@pytest.fixture
def fixture(tmp_path: Path) -> RepeatingFixture:
    return RepeatingFixture(tmp_path)


def test_duplicate_is_dropped_within_a_batch_and_across_batches(fixture: RepeatingFixture) -> None:
    fixture.arrive(5)
    result = fixture.run("all", drain=True)
    assert result.batches == 3
    assert (result.counts["read"], result.counts["duplicates"], result.counts["written.out"]) == (27, 12, 15)
    fixture.check()


@pytest.mark.slow
def test_no_duplicate_is_written_after_a_crash_at_any_step(tmp_path: Path) -> None:
    def run_to(at: int | None) -> tuple[RepeatingFixture, Steps]:
        fixture, steps = RepeatingFixture(tmp_path / f"{at}"), Steps(at)
        fixture.arrive(2)
        fixture.run("earlier")
        fixture.arrive(3)
        with suppress(Crash):
            fixture.run("run", drain=True, store=StepReportingStore(fixture.store, steps), engine=RowsEngine(steps))
        return fixture, steps

    _, complete_run = run_to(None)
    assert "write deduplication state" in complete_run.taken
    for at in range(len(complete_run.taken)):
        for other in ("run", "another"):
            fixture, steps = run_to(at)
            assert steps.died
            fixture.run(other, drain=True)
            fixture.run("run", drain=True)
            fixture.check()
            shutil.rmtree(tmp_path / f"{at}")


def test_id_expires_after_its_ttl_and_not_before(fixture: RepeatingFixture) -> None:
    fixture.arrive(1)
    fixture.run("a")
    for at_s, written_rows in ((1000, 0), (1001, 3)):
        fixture.at_s = at_s
        path = fixture.root / "in" / f"again-{at_s}.json"
        path.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(3)))
        result = fixture.run(f"at {at_s}")
        assert result.counts["written.out"] == written_rows
    assert fixture.visible() == Counter({0: 2, 1: 2, 2: 2})


def test_aborted_version_does_not_change_the_deduplication_state(fixture: RepeatingFixture) -> None:
    from airflow_provider_streamsem.pipeline.maintenance.abort import abort

    fixture.arrive(2)
    fixture.run("first")
    fixture.arrive(2)
    fixture.dies("second", at="staged")
    opened = fixture.opened()
    abort(opened.log, opened.record, 1, reason="poison")
    fixture.run("third", drain=True)
    fixture.check()


def test_reprocessing_writes_the_same_ids_and_later_batches_drop_their_duplicates(fixture: RepeatingFixture) -> None:
    fixture.arrive(4)
    fixture.run("all", drain=True)
    engine = RowsEngine()
    result = fixture.run("reprocess", reprocessed=0, engine=engine)
    assert (result.counts["written.out"], result.counts["duplicates"]) == (6, 3)
    fixture.run("reprocess again", reprocessed=0)
    fixture.arrive(2)
    fixture.run("rest", drain=True)
    fixture.check()


class ParsingEngine(RowsEngine):
    """Parses only the records with the given ids, as a different schema would."""

    def __init__(self, ids: set[int]) -> None:
        super().__init__()
        self.ids = ids

    def _read(self, job: Any) -> Any:
        rows, bad = super()._read(job)
        return [row for row in rows if row["id"] in self.ids], bad


def test_reprocessing_that_parses_other_records_keeps_each_id_once(fixture: RepeatingFixture) -> None:
    fixture.arrive(1)  # 0, 1, 2
    fixture.run("first", engine=ParsingEngine({0, 1}))
    fixture.at_s = 10
    fixture.arrive(1)  # 0 to 5
    fixture.run("second", engine=ParsingEngine({2, 3}))
    # Id 1 is no longer parsed, and version 1 wrote id 2.
    fixture.run("reprocess", reprocessed=0, engine=ParsingEngine({0, 2}))
    assert fixture.visible() == Counter([0, 2, 3])
    fixture.at_s = 20
    path = fixture.root / "in" / "redelivery.json"
    path.write_text("".join(json.dumps({"id": n}) + "\n" for n in range(6)))
    fixture.run("third")
    assert fixture.visible() == Counter(range(6))
    fixture.run("reprocess again", reprocessed=0, engine=ParsingEngine({0, 1, 2}))
    assert fixture.visible() == Counter(range(6))


def test_reprocessing_of_a_version_planned_by_a_clock_that_was_ahead_keeps_each_id_once(
    fixture: RepeatingFixture,
) -> None:
    fixture.at_s, fixture.ttl_s = 86_400, 10**6
    fixture.arrive(1)  # 0, 1, 2
    fixture.run("first", engine=ParsingEngine({0, 1}))
    fixture.at_s = 0
    fixture.arrive(1)  # 0 to 5
    fixture.run("second")
    fixture.run("reprocess", reprocessed=0, engine=ParsingEngine({0, 1, 2}))
    assert fixture.visible() == Counter(range(6))


def test_clock_that_is_far_behind_the_newest_outcome_is_reported(
    fixture: RepeatingFixture, caplog: pytest.LogCaptureFixture
) -> None:
    for at_s, reports in ((86_400, False), (86_400 - 3_000, False), (80_000, True)):
        fixture.at_s = at_s
        fixture.arrive(1)
        caplog.clear()
        fixture.run(f"at {at_s}")
        assert ("one of two machines has a wrong clock" in caplog.text) is reports


@pytest.mark.parametrize("bound", [{"ttl_s": 1000}, {"rows": 100}], ids=str)
@pytest.mark.parametrize("removed", [False, True])
def test_reprocessing_of_one_version_after_another_keeps_each_id_once(
    fixture: RepeatingFixture, bound: dict[str, int], removed: bool
) -> None:
    spec = fixture.pipeline(dedup=Dedup(keys=["id"], **bound))
    for version, ids in enumerate([{0, 1, 2} if removed else {0, 1}, {0, 1, 3}]):
        fixture.at_s = 10 * version
        fixture.arrive(1)
        fixture.run(f"{version}", pipeline=spec, engine=ParsingEngine(ids))
    fixture.run("reprocess 0", reprocessed=0, pipeline=spec, engine=ParsingEngine({0, 1} if removed else {0, 1, 2}))
    fixture.run("reprocess 1", reprocessed=1, pipeline=spec, engine=ParsingEngine({0, 1, 2, 3}))
    assert fixture.visible() == Counter(range(4))


@pytest.mark.parametrize("bound", [{"ttl_s": 1000}, {"rows": 100}], ids=str)
@pytest.mark.parametrize("later", [set(), {3}], ids=str)
def test_id_that_a_reprocessing_run_removed_passes_in_a_later_version(
    fixture: RepeatingFixture, bound: dict[str, int], later: set[int]
) -> None:
    """The removed id was the oldest, and the only one of its version."""
    spec = fixture.pipeline(dedup=Dedup(keys=["id"], **bound))
    for version, ids in enumerate([{0}, {0, *later}]):
        fixture.at_s = 10 * version
        fixture.arrive(1)
        fixture.run(f"{version}", pipeline=spec, engine=ParsingEngine(ids))
    fixture.run("reprocess 0", reprocessed=0, pipeline=spec, engine=ParsingEngine(set()))
    fixture.run("reprocess 1", reprocessed=1, pipeline=spec, engine=ParsingEngine({0, *later}))
    assert fixture.visible() == Counter([0, *later])


@pytest.mark.parametrize("seed", range(12))
def test_each_id_is_visible_once_after_any_reprocessing_by_any_clocks(fixture: RepeatingFixture, seed: int) -> None:
    """The engine parses a random part of the records in each run. In the end, every version is reprocessed with all of them."""
    choose = random.Random(seed)
    fixture.ttl_s = 10**6
    spec = fixture.pipeline(dedup=Dedup(keys=["id"], **choose.choice([{"ttl_s": 10**6}, {"rows": 10**6}])))
    versions: list[int] = []
    for number in range(8):
        fixture.at_s = choose.randrange(200_000)
        engine = ParsingEngine({id for id in range(30) if choose.random() < 0.6})
        if versions and choose.random() < 0.5:
            fixture.run(f"{number}", reprocessed=choose.choice(versions), pipeline=spec, engine=engine)
        else:
            fixture.arrive(1)
            fixture.run(f"{number}", pipeline=spec, engine=engine)
            versions.append(number)
        assert set(fixture.visible().values()) <= {1}
    for version in versions:
        fixture.at_s = choose.randrange(200_000)
        fixture.run(f"all of {version}", reprocessed=version, pipeline=spec)
    assert fixture.visible() == fixture.expected


def test_reprocessing_after_the_ids_expired_writes_the_same_ids(fixture: RepeatingFixture) -> None:
    fixture.arrive(4)
    fixture.run("all", drain=True)
    fixture.at_s = 5000
    assert fixture.run("reprocess", reprocessed=1).counts["duplicates"] == 6
    fixture.check()


def test_clock_that_goes_back_does_not_expire_ids_early(fixture: RepeatingFixture) -> None:
    fixture.at_s = 900
    fixture.arrive(2)
    fixture.run("first")
    fixture.at_s = 0
    fixture.arrive(2)
    fixture.run("second")
    fixture.at_s = 1700  # the ids of the first batch are younger than 1000 s, those of the second are not
    (fixture.root / "in" / "again.json").write_text("".join(json.dumps({"id": n}) + "\n" for n in range(3)))
    assert fixture.run("third").counts["duplicates"] == 3
    fixture.check()


def test_dedup_with_scope_batch_drops_duplicates_of_the_batch_and_stores_no_state(fixture: RepeatingFixture) -> None:
    fixture.arrive(5)
    result = fixture.run("all", drain=True, pipeline=fixture.pipeline(dedup=Dedup(keys=["id"], scope="batch")))
    # A batch reads two files. Ids repeated inside a batch are dropped, ids repeated by the next batch are not.
    assert (result.counts["read"], result.counts["duplicates"], result.counts["written.out"]) == (27, 6, 21)
    assert fixture.visible() == fixture.expected + Counter([*range(3, 6), *range(9, 12)])
    assert fixture.verdict().violations == []


def test_record_with_a_null_key_is_always_written(fixture: RepeatingFixture) -> None:
    (fixture.root / "in" / "null.json").write_text('{"id": null}\n{"id": null}\n{"id": 1}\n{"id": 1}\n')
    result = fixture.run("first")
    assert (result.counts["written.out"], result.counts["duplicates"]) == (3, 1)


def test_layers_are_few_and_each_id_is_written_a_logarithmic_number_of_times(fixture: RepeatingFixture) -> None:
    fixture.arrive(64)
    fixture.run("all", drain=True)
    opened = fixture.opened()
    outcome = opened.log.find_head().outcome
    assert outcome is not None
    layers = outcome.state["dedup"]
    assert sum(layer["rows"] for layer in layers) == 64 * 3
    assert len(layers) <= 7
    written = 0
    for version in range(outcome.version + 1):
        found = opened.log.outcome(version)
        assert found is not None
        layers_of_version = [layer for layer in found.state["dedup"] if f"data/{version}/" in layer["files"][0]["key"]]
        written += sum(layer["rows"] for layer in layers_of_version)
    assert written <= 64 * 3 * 6
    fixture.check()


def test_rows_limit_keeps_the_newest_ids_and_bounds_the_state(fixture: RepeatingFixture) -> None:
    fixture.arrive(40)
    bounded = fixture.pipeline(dedup=Dedup(keys=["id"], rows=30))
    fixture.run("all", drain=True, pipeline=bounded)
    opened = fixture.opened()
    outcome = opened.log.find_head().outcome
    assert outcome is not None
    assert sum(layer["rows"] for layer in outcome.state["dedup"]) < 120
    fixture.check()


def test_vacuum_deletes_the_deduplication_state_of_losing_attempts(fixture: RepeatingFixture) -> None:
    fixture.arrive(2)
    fixture.dies("first", at="staged")
    fixture.run("first")
    done = vacuum(fixture.pipeline(), log=fixture.log())
    assert ("state", 0) in {(sink, version) for sink, version, _ in done.attempts}
    fixture.arrive(1)
    fixture.run("second")
    fixture.check()


def test_verify_reports_a_missing_file_of_the_deduplication_state(fixture: RepeatingFixture) -> None:
    fixture.arrive(2)
    fixture.run("first")
    assert fixture.verdict().violations == []
    (file,) = (fixture.root / "log" / "state").rglob("*.parquet")
    file.unlink()
    assert [(f.invariant, f.version) for f in fixture.verdict().violations] == [("I6", 0)]


def test_dedup_keys_of_a_log_cannot_change(fixture: RepeatingFixture) -> None:
    fixture.arrive(1)
    fixture.run("first")
    with pytest.raises(ConflictError):
        fixture.run("second", pipeline=fixture.pipeline(dedup=Dedup(keys=["other"], ttl_s=5)))


@pytest.mark.parametrize(
    "arguments",
    [{"keys": []}, {"keys": ["a"]}, {"keys": ["a"], "ttl_s": 0}, {"keys": ["a"], "ttl_s": 1, "rows": 1}, {"keys": ["a"], "scope": "batch", "rows": 1}, {"keys": "a", "ttl_s": 1},
     {"keys": ["a"], "scope": "topic", "ttl_s": 1}],
)  # fmt: skip
def test_invalid_arguments_are_reported_by_name(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=r"dedup"):
        Dedup(**arguments)


def test_guarantee_label_names_the_dedup_limit(fixture: RepeatingFixture) -> None:
    assert str(guarantee(fixture.pipeline(dedup=Dedup(keys=["id"], ttl_s=86_400)))).startswith(
        "effectively-once (unchanged files, dedup 24 h)"
    )
    in_each_batch = guarantee(fixture.pipeline(dedup=Dedup(keys=["id"], scope="batch")))
    assert in_each_batch.conditions == "unchanged files, dedup in each batch"
    with pytest.raises(InvalidError, match="weaker than it requires"):
        fixture.pipeline(dedup=Dedup(keys=["id"], ttl_s=86_400), require="exactly_once")
    assert fixture.pipeline(dedup=Dedup(keys=["id"], ttl_s=86_400), require="effectively_once")


def test_layers_are_merged_and_expired_by_age_and_size() -> None:
    layers = [Layer(newest_ms=at, rows=rows) for at, rows in ((10, 100), (20, 10), (30, 5), (40, 5))]
    assert [absorbed(layers, rows) for rows in (1, 5, 10, 75, 79, 80)] == [0, 3, 3, 3, 3, 4]
    kept = layers_of(state_of(layers, None), Dedup(keys=["a"], ttl_s=1), 1025)
    assert [layer.newest_ms for layer in kept] == [30, 40]
    assert [layer.newest_ms for layer in layers_of(state_of(layers, None), Dedup(keys=["a"], rows=11), 10**9)] == [
        20,
        30,
        40,
    ]
