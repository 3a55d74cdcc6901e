"""Valid entries. Tests change one field of them."""

from __future__ import annotations

from typing import Any

from airflow_provider_streamsem.protocol.codec import encode, sha256
from airflow_provider_streamsem.protocol.entries import Committable, DataFile, Outcome, Plan, Quarantine, StagedManifest
from airflow_provider_streamsem.protocol.kinds.batch import Batch


def plan(version: int = 0, **changes: Any) -> Plan:
    values: dict[str, Any] = {
        "version": version, "work": Batch(), "previous": "", "ranges": {"files": (version, version + 1)}, "pins": [{"path": "a.json", "bytes": 3, "identity": "mtime:1"}], "run_key": f"run-{version}",
        "j": 0, "run_start": {"files": version}, "planned_at_ms": 1, "spec": "s", "transform": "m:f", "nonce": f"plan-{version}",
    }  # fmt: skip
    return Plan(**{**values, **changes})


def file(version: int = 0, **changes: Any) -> DataFile:
    values: dict[str, Any] = {
        "key": f"data/{version}/a/part.parquet", "bytes": 10, "rows": 2, "checksum": "footer:x", "partition": {"day": None, "g": ""},
    }  # fmt: skip
    return DataFile(**{**values, **changes})


def outcome(of: Plan, **changes: Any) -> Outcome:
    values: dict[str, Any] = {
        "version": of.version, "result": "commit", "work": of.work, "plan": encode(of).sha256, "attempt_id": "a",
        "sinks": {"out": Committable(format="parquet", rows=2, files=(file(of.version),))}, "schemas": {"out": "{}"}, "quarantine": Quarantine(),
        "counts": {"read": 2, "parsed": 2, "quarantined": 0, "filtered": 0, "written.out": 2}, "next": {"files": of.version + 1},
        "spec": "s", "transform": "m:f", "decided_at_ms": 2, "nonce": f"outcome-{of.version}",
    }  # fmt: skip
    if changes.get("result") == "abort":
        values |= {"work": None, "attempt_id": None, "sinks": {}, "counts": {}, "next": {"files": of.version}}
    return Outcome(**{**values, **changes})


def manifest(of: Plan, **changes: Any) -> StagedManifest:
    committed = outcome(of)
    values: dict[str, Any] = {
        "version": of.version, "attempt_id": "a", "plan": encode(of).sha256, "spec": "s", "transform": "m:f", "sinks": committed.sinks,
        "schemas": committed.schemas, "quarantine": committed.quarantine, "counts": committed.counts, "staged_ms": 5, "nonce": "m",
    }  # fmt: skip
    return StagedManifest(**{**values, **changes})


def chain(length: int) -> list[tuple[Plan, Outcome]]:
    """A log of commits with one offset each."""
    entries: list[tuple[Plan, Outcome]] = []
    for version in range(length):
        previous = sha256(encode(entries[-1][1]).data) if entries else ""
        next_plan = plan(version, previous=previous)
        entries.append((next_plan, outcome(next_plan)))
    return entries
