"""Compares two specs of a pipeline, and logs the fields that differ and the runs that used the specs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import read_json
from airflow_provider_streamsem.protocol.entries import Json, Outcome, Plan
from airflow_provider_streamsem.protocol.view import Head

logger = telemetry.log_of(__name__)

SHOWN = ("where", "transform")
"""Fields whose values are logged. For other fields only the names are logged, because their values may be long."""


def changed_fields(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return the fields in which two specs differ, as sorted paths such as ``where``, ``source.schema`` or ``sinks.lake.codec``."""
    return _differences({**before, "immutable_config": None}, {**now, "immutable_config": None}, "")


def _differences(before: Any, now: Any, path: str) -> list[str]:
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return [] if before == now else [path]
    names = sorted({*before, *now})
    paths = {name: f"{path}.{name}" if path else name for name in names}
    return [difference for name in names for difference in _differences(before.get(name), now.get(name), paths[name])]


def describe_run(run_key: str) -> str:
    """Return the name of a run for messages: its DAG and task if an Airflow operator built the run key, else the run key."""
    parts = _airflow_parts(run_key)
    return run_key if parts is None else f"DAG {parts[0]}, task {parts[1]}"


def dag_id(run_key: str) -> str:
    """Return the DAG of a run key that an Airflow operator built; ``""`` for any other run key."""
    parts = _airflow_parts(run_key)
    return "" if parts is None else parts[0]


def run_id(run_key: str) -> str:
    """Return the name of a run for the log of its own task: Airflow's run id if an Airflow operator built the run key, else the run key."""
    parts = _airflow_parts(run_key)
    return run_key if parts is None else parts[2]


def _airflow_parts(run_key: str) -> list[str] | None:
    """Return DAG id, task id and run id of a run key that an Airflow operator built; ``None`` for any other run key."""
    prefix, _, rest = run_key.partition(":")
    if prefix != "airflow":
        return None
    try:
        parts, _ = json.JSONDecoder().raw_decode(rest)
    except (ValueError, RecursionError):
        return None
    return [str(part) for part in parts[:3]] if isinstance(parts, list) and len(parts) >= 3 else None


def warn_of_open_version(log: CommitLog, plan: Plan, spec: Json, *, run_key: str) -> None:
    """Log a warning that this process stages a version that was planned with another spec. The warning names the fields in which the specs differ."""
    stored = read_json(log.read_spec(plan.spec), keys.spec(plan.spec))
    planner, own = describe_run(plan.run_key), describe_run(run_key)
    by = "" if planner == own else f" by {planner}"
    message = "version %d was planned%s with another spec (%s); this process stages it with its own spec"
    logger.warning(message, plan.version, by, ", ".join(changed_fields(stored, spec)))


def _newest_processed(log: CommitLog, outcome: Outcome | None) -> Outcome | None:
    """Return the outcome, or the newest one before it that is an abort or was processed with the spec in its plan."""
    while outcome is not None and outcome.work is not None and not outcome.work.uses_spec:
        outcome = _before(log, outcome)
    return outcome


def _before(log: CommitLog, outcome: Outcome) -> Outcome | None:
    return log.closed_outcome(outcome.version - 1) if outcome.version else None


def log_spec_change(log: CommitLog, before: Head, plan: Plan, spec: Json) -> None:
    """Log that a version was planned with another spec than the version before it. Log a warning if two tasks seem to run one pipeline with different specs."""
    last = _newest_processed(log, before.outcome)
    if last is None or last.spec == plan.spec:
        return
    stored = read_json(log.read_spec(last.spec), keys.spec(last.spec))
    names = changed_fields(stored, spec)
    values = "".join(
        f"; {name}: {stored.get(name)!r} before, {spec.get(name)!r} now" for name in SHOWN if name in names
    )
    what_changed = (
        f"version {plan.version} is planned with another spec than version {last.version}: {', '.join(names)}{values}"
    )
    last_plan = log.plan(last.version)
    earlier = _newest_processed(log, _before(log, last))
    theirs, ours = _airflow_parts(last_plan.run_key) if last_plan else None, _airflow_parts(plan.run_key)
    if last_plan and theirs and ours and theirs[:2] != ours[:2]:
        message = (
            "two tasks run one pipeline with different specs: version %d by %s, version %d by %s. %s. "
            "Do: use one spec in both tasks, or one pipeline each."
        )
        logger.warning(
            message,
            last.version,
            describe_run(last_plan.run_key),
            plan.version,
            describe_run(plan.run_key),
            what_changed,
        )
    elif earlier is not None and earlier.spec == plan.spec:
        message = (
            "the spec is the same as that of version %d, but differs from that of the version in between. Two processes may run this pipeline with different "
            "specs: version %d by %s, version %d by %s. %s. Do: use one spec in both processes, or one pipeline each."
        )
        last_run_key = last_plan.run_key if last_plan else ""
        logger.warning(
            message,
            earlier.version,
            last.version,
            describe_run(last_run_key),
            plan.version,
            describe_run(plan.run_key),
            what_changed,
        )
    else:
        logger.info("%s", what_changed)
