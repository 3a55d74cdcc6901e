"""The partitions by event time that a pipeline has written, and which of them are complete (``streamsem partitions``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.partitions import NULL, Partitions, partitions
from airflow_provider_streamsem.protocol.entries import Outcome
from airflow_provider_streamsem.readers.files import CommittedLog
from airflow_provider_streamsem.readers.history import History


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """
    A partition by event time.

    :param key: the key of the partition; ``null`` for rows without an event time
    :param rows: number of visible rows that the pipeline has written to it
    :param versions: number of visible commits that have written these rows
    :param late_rows: number of these rows that were written after the partition was complete
    :param is_complete: whether the pipeline expects no more rows of it
    :param complete_in: the first version after which the partition is complete; ``None`` if it is not complete, or if that version is older than those that
        were read
    :param newest: the newest version that has written rows to it
    """

    key: str
    rows: int
    versions: int
    late_rows: int
    is_complete: bool
    complete_in: int | None
    newest: int


def partition_states(
    opened: CommittedLog, *, since: str | None = None, until: str | None = None, versions: int = 10_000
) -> list[PartitionState]:
    """
    Return the partitions to which visible commits have written rows, in ascending order of keys. Versions with another grain are left out.

    Rows that an erasure has removed, and rows that a later change or merge has replaced in a table, are counted, because the log records what was written.

    :param since: the first key, inclusive; a prefix of a key names all partitions that begin with it
    :param until: the last key, inclusive; as for ``since``
    :param versions: how many of the newest versions are read, 1 or more. Rows of earlier ones are not counted
    :raises InvalidError: the pipeline has no partitions
    """
    history = History(opened)
    settings = _settings(opened, history)
    head = opened.head
    numbers = range(max(0, head - versions + 1), head + 1)
    outcomes = [each.outcome for each in history.versions(numbers) if each.outcome is not None]
    kept = [version for span in opened.log.remaining_versions(outcomes[-1]) for version in span] if outcomes else []
    visible = _visible(outcomes, {*kept})
    newest = outcomes[-1].complete if outcomes else None
    states: dict[str, PartitionState] = {}
    for outcome in visible:
        root = opened.log.find_root(outcome.version)
        before = opened.log.closed_outcome(root - 1).complete if root else None
        late = settings.late_rows(before, outcome.time_partitions)
        for key, rows in outcome.time_partitions.items():
            if not _is_within(key, since, until) or not (key == NULL or settings.is_key(key)):
                continue
            known = states.get(key)
            is_complete = key != NULL and newest is not None and newest.has(settings.bounds(key)[1])
            states[key] = PartitionState(
                key=key,
                rows=rows + (known.rows if known else 0),
                versions=1 + (known.versions if known else 0),
                late_rows=late.get(key, 0) + (known.late_rows if known else 0),
                is_complete=is_complete,
                complete_in=_complete_in(outcomes, settings.bounds(key)[1]) if is_complete else None,
                newest=outcome.version,
            )
    return [states[key] for key in sorted(states)]


def _settings(opened: CommittedLog, history: History) -> Partitions:
    if opened.pipeline is not None and opened.pipeline.partitions is not None:
        return opened.pipeline.partitions
    newest = history.version(opened.head) if opened.head >= 0 else None
    spec: Mapping[str, object] = {} if newest is None else history.spec(newest.plan.spec)
    found = partitions("the stored spec:", spec.get("partitions"))
    if found is None:
        raise InvalidError("the pipeline has no `partitions`", log=opened.log.store.url).advising(
            "set `partitions` of the pipeline: the versions that are committed then record their partitions."
        )
    return found


def _visible(outcomes: list[Outcome], kept: set[int]) -> list[Outcome]:
    """Return the commits whose rows are visible, without those that a rollback has removed or a reprocessing run has replaced."""
    remaining = [each for each in outcomes if each.has_rows and each.version in kept]
    replaced = {version for each in remaining for version in each.hidden.commits}
    return [each for each in remaining if each.version not in replaced]


def _complete_in(outcomes: list[Outcome], end_ms: int) -> int | None:
    """Return the first version after which partitions that end at a time are complete; ``None`` if it is before the versions that were read."""
    incomplete = [each.version for each in outcomes if each.complete is None or not each.complete.has(end_ms)]
    first = outcomes[0].version
    found = max(incomplete, default=first - 1) + 1
    return None if found == first and first > 0 else found


def _is_within(key: str, since: str | None, until: str | None) -> bool:
    return (since is None or since <= key[: len(since)]) and (until is None or key[: len(until)] <= until)
