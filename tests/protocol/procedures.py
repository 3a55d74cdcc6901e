"""Drives a procedure of the protocol with events."""

from __future__ import annotations

from airflow_provider_streamsem.protocol.machine import Event, Procedure


def drive(procedure: Procedure[object], *events: Event) -> object:
    """Send events to a procedure. Returns its result, or the requests so far if it has not ended."""
    requests = [next(procedure)]
    for event in events:
        try:
            requests.append(procedure.send(event))
        except StopIteration as stop:
            return stop.value
    return requests
