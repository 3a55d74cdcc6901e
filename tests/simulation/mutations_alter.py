"""Mutations of alters, and of what runs know of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_streamsem.pipeline.maintenance import alter
from airflow_provider_streamsem.pipeline.run import run
from airflow_provider_streamsem.pipeline.versions import commit as versions
from airflow_provider_streamsem.protocol import invariants, offsets
from airflow_provider_streamsem.protocol.entries import Outcome
from tests.simulation.mutations import Mutation


def run_compares_its_spec_only_when_it_starts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(run.Run, "check_immutable_config", lambda self, position: None)


def alter_skips_the_records_of_the_open_batch(patch: pytest.MonkeyPatch) -> None:
    real = versions.abort_outcome

    def abort_outcome(log: Any, head: Any, **named: Any) -> Outcome:
        ends = offsets.advance(head.next, offsets.ends(head.plan.ranges))
        return replace(real(log, head, **named), next=ends)

    patch.setattr(versions, "abort_outcome", abort_outcome)
    patch.setattr(invariants, "check_next", lambda plan, outcome, before: None)


def alter_hides_no_rows_of_a_removed_sink(patch: pytest.MonkeyPatch) -> None:
    real = alter._altered
    patch.setattr(alter, "_altered", lambda *args: replace(real(*args), removed=()))


ALTER_MUTATIONS = [
    Mutation(run_compares_its_spec_only_when_it_starts, "sinks of another spec|W35|immutable|verify", "alters"),
    Mutation(alter_skips_the_records_of_the_open_batch, "ids are missing|verify|I5", "alters"),
    Mutation(alter_hides_no_rows_of_a_removed_sink, "second sink|verify|I8", "alters"),
]
