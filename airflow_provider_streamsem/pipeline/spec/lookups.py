"""Pins the rows of a pipeline's lookups, and checks that pinned rows still exist."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.pipeline.spec.pipeline import Pipeline
from airflow_provider_streamsem.protocol.entries import Json, Plan


def pin_lookups(
    pipeline: Pipeline, now_ms: int, *, planned: Mapping[str, Json] = MappingProxyType({})
) -> dict[str, Json]:
    """Return lookup name → pin, ordered by name. Pins in ``planned`` (of the version that this plan replaces) are kept. Others pin the current rows."""
    return {
        name: planned[name] if name in planned else lookup.pin(now_ms)
        for name, lookup in sorted(pipeline.lookups.items())
    }


def check_lookups(pipeline: Pipeline, plan: Plan) -> None:
    """Check that the rows that the plan pins for the lookups still exist, unchanged. Raises ``InvalidError`` if the plan was created with other lookups."""
    if {*plan.lookups} != {*pipeline.lookups}:
        raise InvalidError(
            "the open version was planned with other lookups; nothing became visible",
            version=plan.version,
            planned=sorted(plan.lookups),
            given=sorted(pipeline.lookups),
        ).advising("run once with the former lookups, or abort the version: streamsem abort. Then run again.")
    for name, lookup in pipeline.lookups.items():
        lookup.check_pin(plan.lookups[name])
