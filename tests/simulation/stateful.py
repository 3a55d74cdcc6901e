"""
The simulated pipeline with state: counts of the records of each id, which each batch emits for its ids.

Its engine replaces Spark's stateful operators. It names and shares state files as Spark does. The snapshot of a batch names the SST files with the counts, and
shares them with the snapshots of earlier batches.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from airflow_provider_streamsem import Limits, Pipeline, State
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engine import Job, Produced
from airflow_provider_streamsem.errors import InvalidError, SourceChangedError, StageError
from airflow_provider_streamsem.protocol.entries import Json
from airflow_provider_streamsem.state.settings import (
    LOCATION,
    Operator,
    OperatorState,
    operator_state,
    with_operator_state,
)
from tests.simulation import checks
from tests.simulation.checks import RawLog, require
from tests.simulation.disk import SimulatedEngine
from tests.simulation.scheduler import Process
from tests.simulation.simulated_pipeline import PipelineFixture
from tests.simulation.store import SimulatedStore

MOST_SSTS = 3
"""A batch after which the state would have more SST files merges all of them into one."""


def unchanged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return rows


class StatefulPipeline(PipelineFixture):
    """A pipeline whose files repeat ids, and which emits the number of records of each id so far."""

    name = "stateful"
    kinds = (*PipelineFixture.kinds, "reprocess", "reprocess", "vacuum", "vacuum", "vacuum")
    vacuum_from = 2
    vacuum_waits = 100
    unique_ids = False

    def pipeline(self, **changes: Any) -> Pipeline:
        state = State(output_mode="update", partitions=1, keep_versions=1)
        return super().pipeline(
            **{"limits": Limits(max_files=1), "state": state, "transform": unchanged, "rows": "any", **changes}
        )

    def engine(self, step: Callable[[str], object] | None = None) -> CountingEngine:
        return CountingEngine(step)

    def next_ids(self) -> list[int]:
        new = super().next_ids()
        return new + [self.rng.randrange(self.files_added) for _ in range(self.rng.choice((0, 1, 2)))]

    def loses_state(self, attempt_id: str, store: SimulatedStore) -> bool:
        lost = [stat.key for stat in store.list(f"{LOCATION}/") if stat.key.endswith(f"_{_plain(attempt_id)}.zip")]
        if not lost or self.rng.random() < 0.5:
            return False
        store.lose(lost[0])
        self.scheduler.count["snapshots lost with their machine"] += 1
        return True

    def allows_failure(self, process: Process, error: Exception | None, log: RawLog) -> bool:
        """Also allow a reprocessing run to fail if vacuum has deleted, or is deleting, the state before its version."""
        is_deleted = isinstance(error, (InvalidError, SourceChangedError, StageError)) and "deleted" in str(error)
        if is_deleted and process.kind.endswith("reprocess"):
            self.scheduler.count["gave up: the state was deleted"] += 1
            return True
        return super().allows_failure(process, error, log)

    def check(self, log: RawLog) -> None:
        """Check the rows of each commit against the records of all batches up to it."""
        total: Counter[int] = Counter()
        totals: dict[int, Counter[int]] = {}
        emitted: dict[int, dict[int, int]] = {}
        for version in sorted(log.outcomes):
            back = log.work(version, "rollback")
            total = Counter(total if back is None else totals[back["to"]])
            totals[version] = total
            if version not in log.committed or back is not None:
                continue
            counts = {row["id"]: row["n"] for row in checks.rows(self.root / "out", log.files(version))}
            if log.kind(version) == "reprocess":
                root = log.root(version)
                require(
                    counts == emitted[root],
                    "a reprocessing run emitted other counts than its root",
                    version,
                    counts,
                    emitted[root],
                )
                continue
            read = self.read_ids(log.plans[version]["pins"])
            total += read
            expected = {id: total[id] for id in read}
            require(counts == expected, "a batch emitted wrong counts", version, counts, expected)
            emitted[version] = counts
            self.scheduler.count["counts emitted"] += len(counts)

    def check_end(self, log: RawLog) -> None:
        self.check(log)
        head = log.outcomes[len(log.outcomes) - 1]
        state = operator_state(head["state"])
        expected = sum(
            (
                self.read_ids(log.plans[v]["pins"])
                for v in log.kept(max(log.outcomes))
                if v in log.committed and log.kind(v) == "batch"
            ),
            Counter[int](),
        )
        require(
            state is not None and state.operators[0].rows == len(expected),
            "the state has another number of ids",
            state,
            expected,
        )

    def read_ids(self, pins: list[dict[str, Any]]) -> Counter[int]:
        """The ids in the files of a plan, without malformed lines."""
        lines = [line for pin in pins for line in (self.root / "in" / pin["path"]).read_text().splitlines()]
        return Counter(json.loads(line)["id"] for line in lines if line.endswith("}"))


class CountingEngine(SimulatedEngine):
    """An engine that keeps the number of records of each id in state files, as Spark's state stores do."""

    def stage(self, job: Job, log: CommitLog) -> Produced:
        return super().stage(replace(job, state_settings=None), log)

    def _deduplicated(self, job: Job, log: CommitLog, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], Json]:
        base = operator_state(job.base_state)
        attempt = _plain(job.attempt_id)
        root = attempt if base is None else base.root
        batches = 0 if base is None else base.batches
        directory = f"{LOCATION}/{root}/state/0/0"
        names, counts = {}, Counter[int]()
        if base is not None:
            names = self._snapshot(log, f"{directory}/{batches}_{base.operators[0].ids[0][0]}.zip")
            for name in names:
                counts.update(self._counts(log, f"{directory}/SSTs/{name}"))
        added = Counter(row["id"] for row in rows)
        counts += added
        self._step("counted")
        merges = len(names) == MOST_SSTS
        name = f"{attempt}.sst"
        stored = counts if merges else added
        data = json.dumps(sorted(stored.items())).encode()
        log.create(f"{directory}/SSTs/{name}", data)
        names = {**({} if merges else names), name: len(data)}
        log.create(f"{directory}/{batches + 1}_{attempt}.zip", _snapshot_of(names))
        after = OperatorState(
            root=root,
            batches=batches + 1,
            partitions=1,
            columns={"": "{}"},
            operators=(Operator(name="count", rows=len(counts), bytes=0, ids=((attempt,),)),),
        )
        return [{"id": key, "n": counts[key]} for key in sorted(added)], with_operator_state(job.base_state, after)

    def _snapshot(self, log: CommitLog, key: str) -> dict[str, int]:
        """The SST files of a snapshot, and their sizes."""
        with zipfile.ZipFile(io.BytesIO(self._required(log, key))) as archive:
            metadata = archive.read("metadata").decode().partition("\n")[2]
        return {sst["dfsSstFileName"]: sst["sizeBytes"] for sst in json.loads(metadata)["sstFiles"]}

    def _counts(self, log: CommitLog, key: str) -> dict[int, int]:
        return dict(json.loads(self._required(log, key)))

    def _required(self, log: CommitLog, key: str) -> bytes:
        data = log.read(key)
        if data is None:
            raise StageError("a state file was deleted; nothing became visible", key=key)
        return data


def _plain(attempt_id: str) -> str:
    """The id of an attempt with the characters that the id of a state may have."""
    return attempt_id.replace(".", "-").replace(" ", "-")


def _snapshot_of(names: dict[str, int]) -> bytes:
    """A snapshot in the form of Spark's: an archive with the names and sizes of the SST files. Its bytes depend on these only."""
    metadata = json.dumps({"sstFiles": [{"dfsSstFileName": name, "sizeBytes": size} for name, size in names.items()]})
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr(zipfile.ZipInfo("metadata"), f"v1\n{metadata}")
    return data.getvalue()
