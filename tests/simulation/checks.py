"""Checks that do not use the product: they read the raw objects of the log, and files as plain JSON lines."""

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
ChunkRound = tuple[int, str, int, int]


def require(condition: object, message: str, *facts: object) -> None:
    if not condition:
        raise Violation(f"{message}: {', '.join(map(str, facts))}" if facts else message)


@dataclass
class RawLog:
    """
    The entries of the log: plans, outcomes and receipts by version.

    :attr claims: claims by version, sink, chunk and round
    :attr effects: effects by version, sink, chunk and round
    """

    plans: dict[int, dict[str, Any]] = field(default_factory=dict)
    outcomes: dict[int, dict[str, Any]] = field(default_factory=dict)
    receipts: dict[int, dict[str, Any]] = field(default_factory=dict)
    claims: dict[ChunkRound, dict[str, Any]] = field(default_factory=dict)
    effects: dict[ChunkRound, dict[str, Any]] = field(default_factory=dict)

    @property
    def open(self) -> int | None:
        """The open version."""
        return next((v for v in self.plans if v not in self.outcomes), None)

    @property
    def committed(self) -> list[int]:
        return sorted(v for v, outcome in self.outcomes.items() if outcome["result"] == "commit")

    @property
    def pending_publish(self) -> int | None:
        """The commit with pending publishes."""
        return next((v for v in self.committed if self.outcomes[v].get("publish") and v not in self.receipts), None)

    def versions_of_run(self, run_key: str) -> list[int]:
        return sorted(v for v, plan in self.plans.items() if plan["run_key"] == run_key)

    def work(self, version: int, kind: str) -> dict[str, Any] | None:
        """The payload of a commit of a kind; ``None`` if the version is of another kind, or is no commit."""
        work: dict[str, Any] = self.outcomes.get(version, {}).get("work", {})
        return work if work.get("kind") == kind else None

    def kind(self, version: int) -> str:
        """The kind of a version."""
        return str(self.plans[version]["work"]["kind"])

    def files(self, version: int, sink: str = "out") -> list[str]:
        """The keys of the files of one commit."""
        output = self.outcomes[version]["sinks"].get(sink)  # a rollback has no output
        return [] if output is None else [file["key"] for file in output["files"]]

    def kept(self, at: int) -> list[int]:
        """The versions up to ``at`` that no rollback has removed."""
        found: list[int] = []
        for version in range(at + 1):
            back = self.work(version, "rollback")
            found = [*(v for v in found if back is None or v <= back["to"]), version]
        return found

    def visible(self, at: int) -> list[str]:
        """The keys of the files that readers of a version read from the dataset, in the order of versions."""
        files = self.visible_commits(at)
        rewrites = [
            (version, found)
            for version in range(at + 1)
            if (found := self.work(version, "rewrite")) is not None and found["sink"] == "out"
        ]
        rewritten: set[int] = set()
        for version, found in reversed(rewrites):
            commits = {*found["commits"]}
            if not commits & rewritten and all(files.get(commit) for commit in commits):
                files |= {commit: [] for commit in commits}
                files[version] = [file["key"] for file in found["output"]["files"]]
            rewritten |= commits
        return [key for version in sorted(files) for key in files[version]]

    def visible_commits(self, at: int) -> dict[int, list[str]]:
        """For each commit whose rows are visible at a version, the keys of its own files."""
        files: dict[int, list[str]] = {}
        for version in range(at + 1):
            outcome = self.outcomes[version]
            if outcome["result"] != "commit":
                continue
            replaced = self.work(version, "reprocess")
            if replaced is not None:
                old = files.pop(replaced["replaces"], None)
                require(
                    old is not None, "a reprocessing run replaced a version that was not visible", version, replaced
                )
            back = self.work(version, "rollback")
            if back is not None:
                require(back["to"] in self.kept(version - 1), "a rollback returned to a removed version", version, back)
                files = {v: keys for v, keys in files.items() if v <= back["to"]}
            files[version] = self.files(version)
        return {version: keys for version, keys in files.items() if keys}

    def is_below_target(self, run_key: str) -> bool:
        """Whether a rollback has returned to offsets below the target of a drain, so that the drain continues. It may have removed versions of other runs."""
        versions = self.versions_of_run(run_key)
        target = self.plans[versions[0]]["target"] if versions else {}
        return any(
            version > versions[0] and any(back["next"].get(partition, 0) < end for partition, end in target.items())
            for version in self.outcomes
            if versions and (back := self.work(version, "rollback")) is not None
        )

    def newest_of_chain(self, version: int) -> int:
        """The commit that now holds the rows of a version."""
        for later in self.committed:
            replaced = self.work(later, "reprocess")
            if replaced is not None and replaced["replaces"] == version:
                version = later
        return version

    def root(self, version: int) -> int:
        """The version of the batch at the root of a chain."""
        while (replaced := self.work(version, "reprocess")) is not None:
            version = replaced["replaces"]
        return version


def parse_log(objects: Mapping[str, bytes]) -> RawLog:
    log = RawLog()
    for key, data in objects.items():
        if (entry := _ENTRY.fullmatch(key)) is not None:
            {"p": log.plans, "c": log.outcomes, "d": log.receipts}[entry[2]][int(entry[1])] = json.loads(data)
        elif (chunk := _CHUNK.fullmatch(key)) is not None:
            entries = {"claims": log.claims, "effects": log.effects}[chunk[1]]
            entries[int(chunk[2]), chunk[3], int(chunk[4]), int(chunk[5] or 0)] = json.loads(data)
    require(sorted(log.plans) == list(range(len(log.plans))), "versions are missing", sorted(log.plans))
    require(sorted(log.outcomes) == list(range(len(log.outcomes))), "outcomes are missing", sorted(log.outcomes))
    require(len(log.plans) - len(log.outcomes) in (0, 1), "more than one version is open")
    return log


def rows(dataset: Path, files: list[str]) -> list[dict[str, int]]:
    """The rows in some files of a dataset, parsed as plain JSON lines."""
    parsed: list[dict[str, int]] = []
    for key in files:
        try:
            text = (dataset / key).read_text()
        except FileNotFoundError:
            raise Violation(f"a visible file is missing: {key}") from None
        parsed += map(json.loads, text.splitlines())
    return parsed


def ids(dataset: Path, files: list[str]) -> Counter[int]:
    """The ids in some files of a dataset."""
    return Counter(row["id"] for row in rows(dataset, files))


def check_result(log: RawLog, result: RunResult, run_key: str) -> None:
    """Check a run's result against the raw log (I12)."""
    versions = log.versions_of_run(run_key)
    if any(log.work(version, "rollback") for version in log.outcomes):
        # After a rollback, a drain continues that had returned a result.
        versions = [version for version in versions if version <= result.version]
    kept = log.kept(versions[-1]) if versions and versions[-1] in log.outcomes else versions
    committed = [v for v in versions if v in kept and v in log.outcomes and log.outcomes[v]["result"] == "commit"]
    counts: Counter[str] = Counter()
    for version in committed:
        counts.update(log.outcomes[version]["counts"])
    require(result.run_key == run_key, "run result is of another run", result)
    require(
        {n: c for n, c in result.counts.items() if c} == +counts, "run result has other counts than the log", result
    )
    if counts or not result.completed:
        require(result.version == versions[-1], "run result is not of the run's newest version", result, versions)
    require(result.batches == len(versions), "run result has another number of batches than the log", result, versions)
    last = log.plans[versions[-1]]
    start, end = last["ranges"]["files"]
    if last["target"] is not None:  # from the run's first batch to its last, including batches of other runs in between
        start = min(log.plans[version]["ranges"]["files"][0] for version in versions)
        end = log.outcomes[versions[-1]]["next"]["files"]
    expected = {} if end <= start else {"files": (start, end)}
    require(
        {p: tuple(r) for p, r in result.ranges.items()} == expected,
        "run result has other ranges than the log",
        result,
        expected,
    )


def check_announced(log: RawLog, result: RunResult, run_key: str) -> None:
    """Check that a result announces only commits of other runs. The status is ``committed`` if the result announces commits, else ``empty``."""
    for announced in result.completed:
        plan, outcome = log.plans[announced.version], log.outcomes[announced.version]
        require(outcome["result"] == "commit", "run result announces a version that is not a commit", result)
        is_other = announced.run_key == plan["run_key"] != run_key
        require(is_other, "run result announces its own commit as that of another run", result)
        require(dict(announced.counts) == outcome["counts"], "announced commit has other counts than the log", result)
    announces = bool(result.counts or result.completed)
    require(
        result.status == ("committed" if announces else "empty"),
        "run result has another status than it announces",
        result,
    )
    start, end = result.versions
    is_inside = all(start <= announced.version < end for announced in result.completed)
    require(is_inside, "run result announces a version outside its versions", result)


def check_published(log: RawLog, upto: int) -> None:
    """Check that all commits up to a version were published before a run returned its result (P1)."""
    pending = [v for v in log.committed if v <= upto and log.outcomes[v].get("publish") and v not in log.receipts]
    require(not pending, "run result was returned before the receipts", pending)


def check_runs(log: RawLog) -> None:
    """Check that a single batch commits one range, and that a drain commits nothing beyond its frozen target (I19, W14)."""
    for run_key in {plan["run_key"] for plan in log.plans.values()}:
        plans = [log.plans[v] for v in log.versions_of_run(run_key)]
        target = plans[0]["target"]
        require(all(plan["target"] == target for plan in plans), "a drain's target changed", run_key)
        require(
            [plan["j"] for plan in plans] == list(range(len(plans))),
            "a run's versions are not numbered 0, 1, 2, …",
            run_key,
        )
        if target is None:
            commits = [p["version"] for p in plans if log.outcomes[p["version"]]["result"] == "commit"]
            require(len(commits) <= 1, "a single batch committed more than once", run_key, commits)
        else:
            require(plans[-1]["ranges"]["files"][1] <= target["files"], "a drain planned beyond its target", run_key)
