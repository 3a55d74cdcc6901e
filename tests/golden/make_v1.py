"""
Makes the golden logs of format 1: ``python -m tests.golden.make_v1``. They are committed, and never changed: every later release reads them.

Each is named by its fault and holds ``expect.json``: what ``verify`` must say.
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


# As release 0.1.0 wrote it: a pipeline's arguments are no entry, and later releases have more of them.
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
    """A log of these versions."""
    spec = SPEC
    record = PipelineRecord(pipeline_uuid="u", name="golden", spec=sha256(spec), nonce="n")
    made = {keys.PIPELINE: encode(record).data, keys.spec(sha256(spec)): spec}
    for plan, outcome in chain:
        pointer = RunPointer(run_key=plan.run_key, j=plan.j, version=plan.version, target=plan.target)
        made[keys.plan(plan.version)] = encode(plan).data
        made[keys.pointer(plan.run_key, plan.j)] = encode(pointer).data
        made[keys.outcome(plan.version)] = encode(outcome).data
    return made


def chained(*ranges: tuple[int, int]) -> list[tuple[Plan, Outcome]]:
    """Commits of these ranges, each entry naming the one before it."""
    made: list[tuple[Plan, Outcome]] = []
    for version, (start, end) in enumerate(ranges):
        previous = encode(made[-1][1]).sha256 if made else ""
        initial_offsets = {"files": 0} if version == 0 else None
        plan = samples.plan(
            version,
            previous=previous,
            initial_offsets=initial_offsets,
            ranges={"files": (start, end)},
            run_start={"files": start},
        )
        made.append((plan, samples.outcome(plan, next={"files": end}, spec=sha256(SPEC))))
    return made


def clean() -> Objects:
    return objects(chained(*[(n, n + 1) for n in range(LENGTH)]))


def clean_with_an_abort_and_an_open_version() -> Objects:
    made = chained((0, 1))
    plan = samples.plan(1, previous=encode(made[0][1]).sha256)
    aborted = samples.outcome(plan, result="abort", reason="poison", schemas={"out": "{}"}, spec=sha256(SPEC))
    open_plan = samples.plan(
        2, previous=encode(aborted).sha256, ranges={"files": (1, 2)}, run_start={"files": 1}, j=1, run_key=plan.run_key
    )
    return {**objects([*made, (plan, aborted)]), keys.plan(2): encode(open_plan).data}


def range_duplicated_at_2() -> Objects:
    return objects(chained((0, 1), (1, 2), (1, 2), (2, 3)))


def gap_at_2() -> Objects:
    return objects(chained((0, 1), (1, 2), (3, 4), (4, 5)))


def outcome_of_1_edited() -> Objects:
    made = clean()
    made[keys.outcome(1)] = made[keys.outcome(1)].replace(b'"rows":2', b'"rows":3')
    return made


def newest_outcome_edited_and_sealed_again() -> Objects:
    made = chained(*[(n, n + 1) for n in range(LENGTH)])
    plan, outcome = made[-1]
    counts = {**outcome.counts, "read": 9}
    return objects([*made[:-1], (plan, dataclasses.replace(outcome, counts=counts))])


def outcome_of_2_from_a_spliced_copy() -> Objects:
    """Version 2 was decided a second time in a copy of the log, from which its outcome was copied back."""
    made = clean()
    elsewhere = samples.plan(2, nonce="made in the copy", previous="", ranges={"files": (2, 3)})
    made[keys.outcome(2)] = encode(samples.outcome(elsewhere, nonce="decided in the copy")).data
    return made


def outcome_of_1_missing() -> Objects:
    return {key: data for key, data in clean().items() if key != keys.outcome(1)}


def plan_of_1_missing() -> Objects:
    return {key: data for key, data in clean().items() if key != keys.plan(1)}


def pointer_of_1_missing() -> Objects:
    return {key: data for key, data in clean().items() if key != keys.pointer("run-1", 0)}


def plan_of_3_torn() -> Objects:
    made = clean()
    made[keys.plan(3)] = made[keys.plan(3)][:100]
    return made


def outcome_of_3_in_a_newer_format() -> Objects:
    made = clean()
    body: dict[str, Any] = {**json.loads(made[keys.outcome(3)]), "format": 2}
    made[keys.outcome(3)] = canonical(body)
    return made


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
    """Write every log that is not there yet."""
    for make, expected in LOGS.items():
        location = ROOT / make.__name__
        shutil.rmtree(location, ignore_errors=True)
        for key, data in make().items():
            path = location / "log" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        (location / "expect.json").write_text(json.dumps({"findings": expected}) + "\n")


if __name__ == "__main__":
    main()
