"""Probes whether a store has the properties that a commit log requires. A run creates no log on a store that fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import repeat

from airflow_provider_streamsem.clock import Clock, tries
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.errors import StoreRefusedError, UnsafeStoreError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.codec import canonical
from airflow_provider_streamsem.stores.contract import Store, UnknownResultError

PARALLEL = 8
ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """
    The result of one probe.

    :param name: the property that was probed
    :param passed: whether the store has it
    :param observed: the behavior that was observed, as text
    """

    name: str
    passed: bool
    observed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorReport:
    """
    The results of all probes of a store.

    Known limitation: the probes can show that a store violates a property. They cannot prove that it never does.

    :param key: the key in the log under which the report is stored
    :param location: URL of the store
    :param at_ms: time of the probes, in milliseconds since the epoch
    :param checks: the results
    """

    key: str
    location: str
    at_ms: int
    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        """Whether every probe passed."""
        return all(check.passed for check in self.checks)


def examine(log: CommitLog) -> DoctorReport:
    """
    Probe a store with objects below ``doctor/``, delete these objects, and store the report there.

    A store that forbids deletes passes, and the objects stay.

    :raises StoreRefusedError: the process has no permission to write, read or list
    :raises UnavailableError: the report could not be stored
    """
    probe = f"doctor/probe-{log.clock.new_id()}/"
    checks = (
        *_checks(log.store, probe, log.clock),
        _check("deleted objects are no longer listed", lambda: _deleted(log.store, probe)),
    )
    report = DoctorReport(
        key=keys.doctor(log.clock.new_id()), location=log.store.url, at_ms=log.clock.now_ms(), checks=checks
    )
    log.create(report.key, canonical({"format": 1, "entry": "doctor", **json.loads(json.dumps(asdict(report)))}))
    return report


def require_safe(log: CommitLog) -> DoctorReport:
    """
    Run :func:`examine`, and raise an error if a probe failed.

    :raises UnsafeStoreError: a probe failed; the error names it
    :raises StoreRefusedError: the process has no permission to write, read or list
    """
    report = examine(log)
    if not report.passed:
        failed = "; ".join(f"{check.name}: {check.observed}" for check in report.checks if not check.passed)
        raise UnsafeStoreError(
            "the store lacks properties that a log requires, such as create-if-absent; no log was created",
            location=log.store.url,
            failed=failed,
            report=report.key,
        )
    return report


def _checks(store: Store, probe: str, clock: Clock) -> tuple[Check, ...]:
    return (
        _check(
            "parallel creates of one key: exactly one wins and is read back", lambda: _one_winner(store, probe, clock)
        ),
        _check("a repeated create is refused and changes nothing", lambda: _repeat_refused(store, probe, clock)),
        _check(
            "a key that was never created reads as absent",
            lambda: "" if store.read(probe + "absent") is None else "the read returned content",
        ),
        _check("a listing is complete and in the order of the keys' bytes", lambda: _ordered(store, probe)),
    )


def _check(name: str, probe: Callable[[], str]) -> Check:
    try:
        problem = probe()
    except UnknownResultError:
        problem = "the store did not report whether a request was applied"
    return Check(name=name, passed=not problem, observed=problem or "as expected")


def _create(store: Store, key: str, data: bytes, clock: Clock) -> bool:
    """Create an object, and return whether the stored object has these bytes. Repeats a request whose result is unknown."""
    for _ in tries(repeat(0.1, 9), clock):
        with suppress(UnknownResultError):
            return store.create(key, data) or store.read(key) == data
    raise UnknownResultError(key)


def _one_winner(store: Store, probe: str, clock: Clock) -> str:
    with ThreadPoolExecutor(PARALLEL) as pool:
        for round_number in range(ROUNDS):
            key = f"{probe}race-{round_number}"
            bodies = [f'{{"writer":{i},"nonce":"{clock.new_id()}"}}'.encode() for i in range(PARALLEL)]
            results = list(pool.map(lambda body, key=key: _create(store, key, body, clock), bodies))
            winners = [body for body, won in zip(bodies, results, strict=True) if won]
            if len(winners) != 1:
                return f"{len(winners)} of {PARALLEL} creates reported that they won"
            if store.read(key) != winners[0]:
                return "the bytes read back are not those of the winner"
    return ""


def _repeat_refused(store: Store, probe: str, clock: Clock) -> str:
    key = f"{probe}repeat"
    first, second = (f'{{"nonce":"{clock.new_id()}"}}'.encode() for _ in range(2))
    if not _create(store, key, first, clock):
        return "a first create was refused"
    if _create(store, key, second, clock):
        return "a second create was accepted"
    return "" if store.read(key) == first else "a refused create changed the object"


def _ordered(store: Store, probe: str) -> str:
    names = ["order/a-b", "order/a/b", "order/a0", "order/b", "order/~"]
    for name in reversed(names):
        store.create(probe + name, b"{}")
    listed = [stat.key for stat in store.list(f"{probe}order/")]
    if listed != sorted((probe + name for name in names), key=str.encode):
        return f"{len(listed)} of {len(names)} keys were listed, or the order was wrong"
    first = [stat.key for stat in store.list(f"{probe}order/", limit=2)]
    return "" if first == listed[:2] else "a limited listing did not start at the first key"


def _deleted(store: Store, probe: str) -> str:
    try:
        for stat in list(store.list(probe)):
            store.delete(stat.key)
    except StoreRefusedError:
        return ""  # Writers never delete (W19). Only vacuum needs this permission.
    return "" if not list(store.list(probe)) else "deleted objects are still listed"
