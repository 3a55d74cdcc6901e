"""The datasets of files that a stored spec names, for readers that do not have the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.errors import InvalidError, LogDamagedError


def stored_sinks(spec: Mapping[str, Any]) -> dict[str, FilesSink | str]:
    """
    Return the sinks of a stored spec by name. A sink whose type is not ``files`` is represented by the name of its type.

    No other sink is created from a stored spec, because that could open connections or load code (R7). The caller checks the ownership mark of a dataset
    before it reads the dataset.

    :param spec: the parsed spec
    :raises LogDamagedError: a sink in the spec is not valid
    """
    found: dict[str, FilesSink | str] = {}
    for name, given in spec["sinks"].items():
        if not isinstance(given, dict) or not isinstance(given.get("type"), str):
            raise LogDamagedError("a sink in the stored spec is not valid", invariant="I1", sink=name)
        found[name] = given["type"]
        if given["type"] == "files":
            try:
                found[name] = FilesSink(path=given.get("path", ""), format=given.get("format", "parquet"))
            except InvalidError as error:
                what = "a files sink in the stored spec is not valid"
                raise LogDamagedError(what, invariant="I1", sink=name) from error
    return found
