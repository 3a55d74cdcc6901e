"""The datasets of files that a stored spec names, for readers that do not have the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError
from airflow_provider_streamsem.protocol.entries import Outcome
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.specs import stored_spec


def stored_sinks(spec: Mapping[str, Any]) -> dict[str, FilesSink | str]:
    """
    Return the sinks of a stored spec by name. A sink whose type is not ``files`` is represented by the name of its type.

    No other sink is created from a stored spec, because that could open connections or load code (R7). The caller checks the ownership marker of a dataset
    before it reads the dataset.
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


def former_sinks(log: CommitLog, version: int, newest: Outcome) -> dict[str, FilesSink | str | None]:
    """
    Return the sinks that alters after a version have removed or replaced, as they were at the version; ``None`` for a sink that did not exist then.

    A string is the type of a sink outside the log. If an alter has moved the dataset since, the sink has the path to which it was moved.
    """
    former: dict[str, FilesSink | str | None] = {}
    for at, alter in log.commits_of(Alter, newest, after=version):
        if alter.removed:
            sinks = stored_sinks(stored_spec(log.read_spec(log.closed_outcome(at - 1).spec)))
            former |= {name: sinks.get(name) for name in alter.removed}
    return former
