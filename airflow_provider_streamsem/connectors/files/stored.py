"""The datasets of files that a stored spec names, for readers that do not have the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.protocol.specs import stored_spec


def stored_sinks(spec: Mapping[str, Any]) -> dict[str, FilesSink | str]:
    """
    Return the sinks of a stored spec by name. A sink whose type is not ``files`` is represented by the name of its type.

    No other sink is created from a stored spec, because that could open connections or load code (R7). The caller checks the ownership marker of a
    dataset before it reads the dataset.

    :param spec: the parsed spec
    :raises LogDamagedError: a sink in the spec is not valid
    """
    sinks: dict[str, FilesSink | str] = {}
    for name, config in spec["sinks"].items():
        if not isinstance(config, dict) or not isinstance(config.get("type"), str):
            raise LogDamagedError("a sink in the stored spec is not valid", invariant="I1", sink=name)
        sinks[name] = config["type"]
        if config["type"] == "files":
            try:
                sinks[name] = FilesSink(path=config.get("path", ""), format=config.get("format", "parquet"))
            except InvalidError as error:
                summary = "a files sink in the stored spec is not valid"
                raise LogDamagedError(summary, invariant="I1", sink=name) from error
    return sinks


def sink_at(log: CommitLog, name: str, version: int) -> FilesSink | str | None:
    """
    Return the former sink of a version, if a later alter removed or replaced it; else ``None``. A string is the type of a sink outside the log.

    :param version: a closed version of the log
    """
    newest = log.find_head().outcome
    alters = [] if newest is None else [o for o in log.alters(newest) if o.version > version and o.altered is not None]
    first = next((o for o in reversed(alters) if o.altered is not None and name in o.altered.removed), None)
    before = None if first is None else log.outcome(first.version - 1)
    return None if before is None else stored_sinks(stored_spec(log.read_spec(before[0].spec))).get(name)
