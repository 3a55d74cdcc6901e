"""The requests of a run to its log."""

from __future__ import annotations

from airflow_provider_streamsem.testing.stores import CountingStore


def requests(store: CountingStore) -> list[tuple[str, str]]:
    """Requests as (method, first part of the key), without doctor and specs, which belong to the creation of the pipeline."""
    return [(m, k.split("/")[0]) for m, k in store.keys if not k.startswith(("doctor/", "specs/"))]
