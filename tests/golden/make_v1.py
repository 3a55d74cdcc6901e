"""
Creates the golden logs of format 1: ``python -m tests.golden.make_v1``. They are committed and never changed. Every later release must read them.

Each log is named after its fault, and has the expected violations of ``verify`` in ``expect.json``.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical, encode, sha256
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord, Plan, RunPointer
from tests.protocol import samples

ROOT = Path(__file__).parent / "v1"
LENGTH = 4
Objects = dict[str, bytes]


# The spec as release 0.1.0 wrote it. A spec is not an entry of the log, and later releases have more arguments.
SPEC = canonical(
    {
        "format": 1,
        "immutable_config": {
            "sinks": {"out": {"format": "parquet", "path": "/data/out", "type": "files"}},
            "source": {"format": "json", "path": "/data/in", "type": "files"},
        },
        "limits": {"max_bytes": None, "max_files": None, "max_quarantined": 10000, "max_rows": None},
        "log": "/data/log",
        "name": "golden",
        "on_data_loss": "fail",
        "require": None,
        "rows": "any",
        "sinks": {
            "out": {
                "codec": None,
                "format": "parquet",
                "partition_by": [],
                "path": "/data/out",
                "target_file_bytes": None,
                "type": "files",
            }
        },
        "source": {
            "format": "json",
            "glob": "*",
            "lookback_days": 0,
            "options": {},
            "path": "/data/in",
            "schema": "id long",
            "start_after": "",
            "type": "files",
        },
        "transform": "",
        "where": None,
    }
)


def objects(chain: list[tuple[Plan, Outcome]]) -> Objects:
    """Return the objects of a log with these versions."""
    spec = SPEC
    record = PipelineRecord(pipeline_uuid="u", name="golden", spec=sha256(spec), nonce="n")
    entries = {keys.PIPELINE: encode(record).data, keys.spec(sha256(spec)): spec}
    for plan, outcome in chain:
        pointer = RunPointer(run_key=plan.run_key, j=plan.j, version=plan.version, target=plan.target)
        entries[keys.plan(plan.version)] = encode(plan).data
        entries[keys.pointer(plan.run_key, plan.j)] = encode(pointer).data
        entries[keys.outcome(plan.version)] = encode(outcome).data
    return entries


def commits_of(*ranges: tuple[int, int]) -> list[tuple[Plan, Outcome]]:
    """Return commits of these ranges. Each plan names the outcome before it."""
    commits: list[tuple[Plan, Outcome]] = []
    for version, (start, end) in enumerate(ranges):
        previous = encode(commits[-1][1]).sha256 if commits else ""
        initial_offsets = {"files": 0} if version == 0 else None
        plan = samples.plan(
            version,
            previous=previous,
            initial_offsets=initial_offsets,
            ranges={"files": (start, end)},
            run_start={"files": start},
        )
        commits.append((plan, samples.outcome(plan, next={"files": end}, spec=sha256(SPEC))))
    return commits


def clean() -> Objects:
    return objects(commits_of(*[(n, n + 1) for n in range(LENGTH)]))


def clean_with_an_abort_and_an_open_version() -> Objects:
    commits = commits_of((0, 1))
    plan = samples.plan(1, previous=encode(commits[0][1]).sha256)
    aborted = samples.outcome(plan, result="abort", reason="poison", schemas={"out": "{}"}, spec=sha256(SPEC))
    open_plan = samples.plan(
        2, previous=encode(aborted).sha256, ranges={"files": (1, 2)}, run_start={"files": 1}, j=1, run_key=plan.run_key
    )
    return {**objects([*commits, (plan, aborted)]), keys.plan(2): encode(open_plan).data}


def range_duplicated_at_2() -> Objects:
    return objects(commits_of((0, 1), (1, 2), (1, 2), (2, 3)))


def gap_at_2() -> Objects:
    return objects(commits_of((0, 1), (1, 2), (3, 4), (4, 5)))


def outcome_of_1_edited() -> Objects:
    log = clean()
    log[keys.outcome(1)] = log[keys.outcome(1)].replace(b'"rows":2', b'"rows":3')
    return log


def newest_outcome_edited_and_sealed_again() -> Objects:
    commits = commits_of(*[(n, n + 1) for n in range(LENGTH)])
    plan, outcome = commits[-1]
    counts = {**outcome.counts, "read": 9}
    return objects([*commits[:-1], (plan, dataclasses.replace(outcome, counts=counts))])


def outcome_of_2_from_a_spliced_copy() -> Objects:
    """Return a log in which the outcome of version 2 comes from a copy of the log, where version 2 was committed a second time."""
    log = clean()
    other_plan = samples.plan(2, nonce="made in the copy", previous="", ranges={"files": (2, 3)})
    log[keys.outcome(2)] = encode(samples.outcome(other_plan, nonce="decided in the copy")).data
    return log


def outcome_of_1_missing() -> Objects:
    return {key: data for key, data in clean().items() if key != keys.outcome(1)}


def plan_of_1_missing() -> Objects:
    return {key: data for key, data in clean().items() if key != keys.plan(1)}


def pointer_of_1_missing() -> Objects:
    return {key: data for key, data in clean().items() if key != keys.pointer("run-1", 0)}


def plan_of_3_torn() -> Objects:
    log = clean()
    log[keys.plan(3)] = log[keys.plan(3)][:100]
    return log


def outcome_of_3_in_a_newer_format() -> Objects:
    log = clean()
    body: dict[str, Any] = {**json.loads(log[keys.outcome(3)]), "format": 2}
    log[keys.outcome(3)] = canonical(body)
    return log


LOGS: dict[Callable[[], Objects], list[list[Any]]] = {
    clean: [],
    clean_with_an_abort_and_an_open_version: [],
    range_duplicated_at_2: [["I4", 2], ["I5", None]],
    gap_at_2: [["I4", 2], ["I5", None]],
    outcome_of_1_edited: [["I1", 1], ["I2", 1], ["I3", 2], ["I5", None]],
    newest_outcome_edited_and_sealed_again: [["I14", 3]],
    outcome_of_2_from_a_spliced_copy: [["I3", 2], ["I3", 3]],
    outcome_of_1_missing: [["I2", 1], ["I3", 2], ["I5", None]],
    plan_of_1_missing: [["I2", 1], ["I5", None]],
    pointer_of_1_missing: [["I16", 1]],
    plan_of_3_torn: [["I1", 3], ["I2", 3], ["I5", None]],
    outcome_of_3_in_a_newer_format: [["R2", 3]],
}


def main() -> None:
    """Write all logs."""
    for make, expected in LOGS.items():
        location = ROOT / make.__name__
        shutil.rmtree(location, ignore_errors=True)
        for key, data in make().items():
            path = location / "log" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (location / "expect.json").write_text(json.dumps({"violations": expected}) + "\n")


if __name__ == "__main__":
    main()
