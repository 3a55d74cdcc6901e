"""What must be true, said without the product: a fold of the raw objects, and files read as plain JSON lines."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_streamsem import RunResult
from tests.simulation.scheduler import Violation

_ENTRY = re.compile(r"log/\d{8}/\d{12}-(\d+)\.([pcd])\.json")
_CHUNK = re.compile(r"(claims|effects)/(\d+)/([^/]+)/(\d+)(?:-(\d+))?\.json")
Part = tuple[int, str, int, int]


def require(holds: object, what: str, *facts: object) -> None:
    if not holds:
        raise Violation(f"{what}: {', '.join(map(str, facts))}" if facts else what)


@dataclass
class RawLog:
    """
    Plans, outcomes and receipts by version, and which files are visible at each version.

    :attr claims: by version, sink, part and round; so are ``effects``
    """

    plans: dict[int, dict[str, Any]] = field(default_factory=dict)
    outcomes: dict[int, dict[str, Any]] = field(default_factory=dict)
    receipts: dict[int, dict[str, Any]] = field(default_factory=dict)
    claims: dict[Part, dict[str, Any]] = field(default_factory=dict)
    effects: dict[Part, dict[str, Any]] = field(default_factory=dict)

    @property
    def open(self) -> int | None:
        """The open version."""
        return next((v for v in self.plans if v not in self.outcomes), None)

    @property
    def committed(self) -> list[int]:
        return sorted(v for v, outcome in self.outcomes.items() if outcome["result"] == "commit")

    @property
    def owing(self) -> int | None:
        """The newest commit, while it waits for its receipts."""
        return next((v for v in self.committed if self.outcomes[v].get("publish") and v not in self.receipts), None)

    def of_run(self, run_key: str) -> list[int]:
        return sorted(v for v, plan in self.plans.items() if plan["run_key"] == run_key)

    def files(self, version: int, sink: str = "out") -> list[str]:
        """Keys of the files of one commit."""
        return [file["key"] for file in self.outcomes[version]["sinks"][sink]["files"]]

    def visible(self, at: int) -> list[str]:
        """Keys of the files that are visible in the dataset at a version, in order of versions."""
        files: dict[int, list[str]] = {}
        for version in range(at + 1):
            outcome = self.outcomes[version]
            if outcome["result"] != "commit":
                continue
            replaced = outcome.get("replaces")
            if replaced is not None:
                gone = files.pop(replaced["version"], None)
                require(gone is not None, "a reprocessing run replaced what was not visible", version, replaced)
            files[version] = self.files(version)
        return [key for version in sorted(files) for key in files[version]]

    def newest_of_chain(self, version: int) -> int:
        """The commit that holds the rows of a version now."""
        for later in self.committed:
            replaced = self.outcomes[later].get("replaces")
            if replaced is not None and replaced["version"] == version:
                version = later
        return version

    def root(self, version: int) -> int:
        """The commit with which a reprocessing run's chain began; of a batch its own."""
        while (replaced := self.outcomes[version].get("replaces")) is not None:
            version = replaced["version"]
        return version


def raw_log(objects: Mapping[str, bytes]) -> RawLog:
    log = RawLog()
    for key, data in objects.items():
        if (entry := _ENTRY.fullmatch(key)) is not None:
            {"p": log.plans, "c": log.outcomes, "d": log.receipts}[entry[2]][int(entry[1])] = json.loads(data)
        elif (chunk := _CHUNK.fullmatch(key)) is not None:
            kept = {"claims": log.claims, "effects": log.effects}[chunk[1]]
            kept[int(chunk[2]), chunk[3], int(chunk[4]), int(chunk[5] or 0)] = json.loads(data)
    require(sorted(log.plans) == list(range(len(log.plans))), "versions are missing", sorted(log.plans))
    require(sorted(log.outcomes) == list(range(len(log.outcomes))), "outcomes are missing", sorted(log.outcomes))
    require(len(log.plans) - len(log.outcomes) in (0, 1), "more than one version is open")
    return log


def rows(dataset: Path, files: list[str]) -> list[dict[str, int]]:
    """The rows in some files of a dataset, by plain JSON."""
    found: list[dict[str, int]] = []
    for key in files:
        try:
            text = (dataset / key).read_text()
        except FileNotFoundError:
            raise Violation(f"a visible file is gone: {key}") from None
        found += map(json.loads, text.splitlines())
    return found


def ids(dataset: Path, files: list[str]) -> Counter[int]:
    """The ids in some files of a dataset."""
    return Counter(row["id"] for row in rows(dataset, files))


def check_answer(log: RawLog, result: RunResult, run_key: str) -> None:
    """What was answered is what is stored (I12), told from the raw log alone."""
    versions = log.of_run(run_key)
    committed = [v for v in versions if v in log.outcomes and log.outcomes[v]["result"] == "commit"]
    counts: Counter[str] = Counter()
    for version in committed:
        counts.update(log.outcomes[version]["counts"])
    require(result.run_key == run_key, "the answer is of another run", result)
    require(
        {n: c for n, c in result.counts.items() if c} == +counts, "the answer's counts are not those stored", result
    )
    if counts or not result.completed:
        require(result.version == versions[-1], "the answer is not of the run's newest version", result, versions)
    require(result.batches == len(versions), "the answer's batches are not those stored", result, versions)
    first, last = log.plans[versions[0]], log.plans[versions[-1]]
    start, end = last["ranges"]["files"]
    if last["target"] is not None:  # from the run's first batch to its last, batches of others in between included
        start, end = first["ranges"]["files"][0], log.outcomes[versions[-1]]["next"]["files"]
    expected = {} if end <= start else {"files": (start, end)}
    require({p: tuple(r) for p, r in result.ranges.items()} == expected, "the answer's ranges", result, expected)


def check_announced(log: RawLog, result: RunResult, run_key: str) -> None:
    """Each completed version of a result is a stored commit of another run. The status is ``committed`` if the result announces rows, else ``empty``."""
    for one in result.completed:
        plan, outcome = log.plans[one.version], log.outcomes[one.version]
        require(outcome["result"] == "commit", "an answer announces what is no commit", result)
        require(one.run_key == plan["run_key"] != run_key, "an answer announces its own commit as another's", result)
        require(dict(one.counts) == outcome["counts"], "an announced commit has other counts than are stored", result)
    announces = bool(result.counts or result.completed)
    require(
        result.status == ("committed" if announces else "empty"), "the answer's status is not what it announces", result
    )
    start, end = result.versions
    require(all(start <= one.version < end for one in result.completed), "an answer's versions", result)


def check_published(log: RawLog, upto: int) -> None:
    """Who is answered finds all that was decided brought to every sink outside the log (P1)."""
    owing = [v for v in log.committed if v <= upto and log.outcomes[v].get("publish") and v not in log.receipts]
    require(not owing, "a run was answered before the receipts", owing)


def check_runs(log: RawLog) -> None:
    """One run commits one range, or a drain nothing beyond the target that its first plan froze (I19, W14)."""
    for run_key in {plan["run_key"] for plan in log.plans.values()}:
        plans = [log.plans[v] for v in log.of_run(run_key)]
        target = plans[0]["target"]
        require(all(plan["target"] == target for plan in plans), "a drain's target moved", run_key)
        require([plan["j"] for plan in plans] == list(range(len(plans))), "a run's versions are miscounted", run_key)
        if target is None:
            commits = [p["version"] for p in plans if log.outcomes[p["version"]]["result"] == "commit"]
            require(len(commits) <= 1, "a single run committed more than once", run_key, commits)
        else:
            require(plans[-1]["ranges"]["files"][1] <= target["files"], "a drain went beyond its target", run_key)
