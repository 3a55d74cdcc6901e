"""The files of the layers of a log (:mod:`airflow_provider_streamsem.state.layers`)."""

from __future__ import annotations

from airflow_provider_streamsem.connectors.files.sink import FilesSink
from airflow_provider_streamsem.protocol.entries import Committable, Json
from airflow_provider_streamsem.state.layers import STATE, files_of_layers


def layers_dataset(log: str) -> FilesSink:
    """Return the dataset that contains the layers of a log, at ``state/`` below the log's root. Each attempt writes to its own directory."""
    return FilesSink(f"{log.rstrip('/')}/{STATE}")


def is_complete(log: str, state: Json) -> bool:
    """Whether every file of every layer exists with the recorded size and checksum (W17)."""
    files = tuple(files_of_layers(state))
    return not files or layers_dataset(log).is_complete(Committable(format="parquet", rows=0, files=files))
