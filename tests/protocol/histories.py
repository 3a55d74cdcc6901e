"""Histories of outcomes, and a log that stores them."""

from __future__ import annotations

import dataclasses
from random import Random
from typing import Any

from airflow_provider_streamsem.protocol import codec, keys
from airflow_provider_streamsem.protocol.entries import Committable, Outcome, Segment
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback
from airflow_provider_streamsem.protocol.view import fold
from airflow_provider_streamsem.stores.memory import MemoryStore
from airflow_provider_streamsem.testing.stores import CountingStore
from tests.protocol import samples


class History:
    """A history with batches, reprocessing runs, rollbacks, rewrites and aborts, and what is visible after it."""

    def __init__(self, seed: int, versions: int) -> None:
        self.rewritten: dict[int, tuple[int, ...]] = {}
        """Version of a rewrite → the commits whose rows are in its files."""
        self.outcomes: list[Outcome] = []
        self.views: list[dict[int, int]] = []
        """For each version: root → the commit that holds its rows."""
        self.offsets: list[int] = []
        self.kept: list[list[int]] = []
        random = Random(seed)
        for _ in range(versions):
            self.add(random)

    def add(self, random: Random) -> None:
        """Add an abort, a reprocessing run, a rollback or a rewrite; or a batch, also if there is nothing to reprocess, to roll back or to rewrite."""
        kind = random.randrange(20)
        version = len(self.outcomes)
        rows, offset = (dict(self.views[-1]), self.offsets[-1]) if version else ({}, 0)
        kept = [*self.kept[-1]] if version else []
        newest = dict(self.outcomes[-1].newest) if version else {}
        changes: dict[str, Any] = {}
        if kind == 0:
            changes = {"result": "abort"}
        elif kind in (1, 2) and rows:
            root = random.choice(sorted(rows)[-5:])
            changes = {"work": Reprocess(replaces=rows[root], counts=self.outcomes[rows[root]].counts)}
            rows[root] = version
        elif kind == 3 and (allowed := [to for to in kept if not self.is_corrected(to)]):
            to = random.choice(allowed[-30:])
            rows, offset, kept = dict(self.views[to]), self.offsets[to], [*self.kept[to]]
            newest["rollback"] = version
            counts = {"read": 2 * (len(self.views[-1]) - len(rows))}
            changes = {
                "sinks": {},
                "counts": {},
                "attempt_id": None,
                "work": Rollback(to=to, next={"files": offset}, counts=counts),
            }
        elif kind in (4, 5) and rows:
            visible = sorted(rows.values())
            first = random.randrange(len(visible))
            self.rewritten[version] = tuple(visible[first : first + random.randrange(1, 20)])
            changes, newest["rewrite"] = self.rewrite(version, self.rewritten[version]), version
        else:
            rows[version], offset = version, offset + 1
        kept.append(version)
        of = samples.plan(version)
        commit = samples.outcome(of, **{**changes, "next": {"files": offset}, "newest": newest})
        if commit.counts:
            commit = dataclasses.replace(commit, counts={"read": 2, "parsed": 2, "quarantined": 0, "written.out": 2})
        self.outcomes.append(commit)
        self.views.append(rows)
        self.offsets.append(offset)
        self.kept.append(kept)

    @staticmethod
    def rewrite(version: int, commits: tuple[int, ...]) -> dict[str, Any]:
        """Return the fields of the outcome of a rewrite."""
        rows = 2 * len(commits)
        output = Committable(format="parquet", rows=rows, files=(samples.file(version, rows=rows),))
        return {"sinks": {}, "counts": {}, "work": Rewrite(sink="out", commits=commits, rows=rows, output=output)}

    def read(self, parts: list[Segment | Outcome], *, since: int = -1, with_rewrites: bool = True) -> list[int]:
        """Return the commits whose rows a reader reads, each as often as the reader reads it."""
        view = fold(parts, initial_offsets={"files": 0}, since=since, with_rewrites=with_rewrites)
        return sorted(commit for file in view.files for commit in self.rewritten.get(file.version, (file.version,)))

    def is_corrected(self, to: int) -> bool:
        """Whether a later version has reprocessed a version up to ``to``, so that no rollback to it is planned (W32)."""
        return any(o.replaces is not None and o.replaces <= to for o in self.outcomes[to + 1 :])


def with_alters(removed: dict[int, tuple[str, ...]]) -> list[Outcome]:
    """250 outcomes with files of two sinks. At some versions, alters remove sinks."""
    outcomes: list[Outcome] = []
    newest: dict[str, int] = {}
    for version in range(250):
        of = samples.plan(version)
        changes: dict[str, Any] = {"next": {"files": version + 1}}
        if version in removed:
            newest = {"alter": version}
            changes |= {"sinks": {}, "counts": {}, "attempt_id": None, "work": Alter(removed=removed[version])}
        else:
            committable = samples.outcome(of).sinks["out"]
            counts = {"read": 2, "parsed": 2, "quarantined": 0, "written.out": 2, "written.old": 2}
            changes |= {"sinks": {"out": committable, "old": committable}, "counts": counts}
        outcomes.append(samples.outcome(of, **changes, newest=newest))
    return outcomes


def stored(outcomes: list[Outcome]) -> CountingStore:
    return CountingStore(MemoryStore(objects={keys.outcome(o.version): codec.encode(o).data for o in outcomes}))
