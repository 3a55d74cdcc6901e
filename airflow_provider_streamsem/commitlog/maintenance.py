"""What a person does to a log: close a version that cannot be staged, and delete what lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_streamsem.arguments import text, whole
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.protocol import keys, offsets
from airflow_provider_streamsem.protocol.entries import Outcome, PipelineRecord
from airflow_provider_streamsem.stores.contract import Store


def abort(log: CommitLog, record: PipelineRecord, version: int, *, reason: str) -> Outcome:
    """
    Close an open version as an abort (W22). The range is planned anew by the next run; nothing of the version becomes visible.

    :returns: the outcome that is stored: a *commit* where an attempt was faster, which is then what happened
    :raises InvalidError: the version is not open
    """
    whole("version", version, least=0)
    text("reason", reason)
    head = log.find_head(record.genesis)
    if head.plan is None or head.plan.version != version:
        raise InvalidError(
            "only the open version can be aborted",
            given=version,
            open=None if head.plan is None else head.plan.version,
            newest_closed=head.closed,
        )
    plan, before = head.plan, head.outcome
    now_ms = log.clock.now_ms()
    outcome = Outcome(
        version=version,
        result="abort",
        plan=head.plan_sha,
        attempt_id=None,
        schemas={} if before is None else before.schemas,
        next=offsets.advance(head.next, offsets.starts(plan.ranges)),
        source=None if before is None else before.source,
        spec=record.spec if before is None else before.spec,
        transform="" if before is None else before.transform,
        decided_at_ms=now_ms,
        duration_ms=max(0, now_ms - plan.planned_at_ms),
        reason=reason,
        nonce=log.clock.new_id(),
    )
    stored = log.decide(head, outcome).outcome
    assert stored is not None
    return stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Vacuumed:
    """What vacuum deleted, or would delete: keys by place."""

    deleted: Mapping[str, tuple[str, ...]]
    bytes: int


def vacuum(log: CommitLog, datasets: Mapping[str, Store], *, dry_run: bool = False) -> Vacuumed:
    """
    Delete what losing attempts of closed versions left: files, then quarantined records, then manifests (V1 to V3).

    Safe beside running writers: after a version's outcome exists, no other attempt of it can ever win. An attempt that still runs may write more; the next
    vacuum finds it.

    :param datasets: place → store of each dataset of the pipeline
    """
    winners: dict[int, tuple[bool, str | None]] = {}
    deleted: dict[str, list[str]] = {}
    size = 0
    places = [(place, store, "data/") for place, store in datasets.items()]
    places += [(log.store.url, log.store, prefix) for prefix in ("quarantine/", "attempts/")]
    for place, store, prefix in places:
        for stat in list(store.list(prefix)):
            version, attempt_id = _attempt_of(stat.key)
            if version is None or not _has_lost(log, winners, version, attempt_id):
                continue
            if not dry_run:
                store.delete(stat.key)
            deleted.setdefault(place, []).append(stat.key)
            size += stat.bytes
    return Vacuumed(deleted={place: tuple(found) for place, found in deleted.items()}, bytes=size)


def _attempt_of(key: str) -> tuple[int | None, str]:
    """Version and attempt of ``data/<n>/<attempt>/…``, ``quarantine/<n>/<attempt>/…`` or ``attempts/<n>/<attempt>.json``."""
    parts = key.split("/")
    if len(parts) < 3 or not parts[1].isdecimal():
        return None, ""
    return int(parts[1]), parts[2].removesuffix(".json")


def _has_lost(log: CommitLog, winners: dict[int, tuple[bool, str | None]], version: int, attempt_id: str) -> bool:
    """Whether the version is closed by an abort or by another attempt; its outcome is read, never guessed (I11)."""
    if version not in winners:
        found = log.outcome(version)
        winners[version] = (found is not None, None if found is None else found[0].attempt_id)
    closed, winner = winners[version]
    return closed and attempt_id != winner


def attempts_of(log: CommitLog, datasets: Mapping[str, Store], version: int) -> set[str]:
    """The attempts of a version of which anything is left: a manifest, or files."""
    found = {
        key.removeprefix(keys.attempts(version)).removesuffix(".json") for key in log.list_keys(keys.attempts(version))
    }
    prefix = keys.data_prefix(version)
    for store in datasets.values():
        found |= {stat.key.removeprefix(prefix).split("/")[0] for stat in store.list(prefix)}
    return found
