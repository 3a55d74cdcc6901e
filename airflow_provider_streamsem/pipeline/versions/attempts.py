"""Finds the attempts of a version."""

from __future__ import annotations

from collections.abc import Mapping

from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.protocol import keys


def attempt_of_key(key: str) -> tuple[int, str]:
    """Return version and attempt id from the second and third segment of a key; ``(-1, "")`` if they are none."""
    parts = key.split("/")
    version = keys.position(parts[1]) if len(parts) > 2 and keys.is_relative(key) else None
    attempt_id = "" if version is None else parts[2].removesuffix(".json")
    return (-1, "") if version is None or not keys.is_attempt_id(attempt_id) else (version, attempt_id)


def attempts_of(log: CommitLog, sinks: Mapping[str, Sink], version: int) -> set[str]:
    """Return the ids of the attempts of a version that still have a manifest in the log or files in a dataset."""
    attempt_ids = {attempt_of_key(key)[1] for key in log.list_keys(keys.attempts(version))}
    return attempt_ids.union(*({attempt for _, attempt in sink.attempts(version)} for sink in sinks.values()))
