"""
What a run tells of itself, for whoever listens: statistics, spans, logs, lineage.

Telling changes nothing and costs nothing where nobody listens: an event is made only for a listener, it holds copies that cannot be changed, and what goes
wrong in making or hearing it stays here. A listener is called in the run's own thread, so one that is slow makes the run slow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, ParamSpec, TypeAlias

from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.protocol.entries import Outcome, Plan, Receipts, StagedManifest
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, between, length

P = ParamSpec("P")
Facts: TypeAlias = Mapping[str, str | int]
Phase: TypeAlias = Literal["run", "plan", "stage", "collect", "decide", "publish"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """
    A phase began; phases nest, and each that begins ends.

    :param facts: ``pipeline`` and ``run_key``; from *plan* on ``version``, from *stage* on ``attempt_id``
    """

    phase: Phase
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """
    The innermost phase ended.

    :param error: class of what was raised, ``""`` where nothing was
    :param truth: of an error of this package, what is true now: a fixed sentence, without values. Messages of others may hold secrets and are not told
    """

    phase: Phase
    error: str = ""
    truth: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """The planner saw the source: ``committed`` and ``latest`` are where each partition stands and ends, exclusive. In a drain ``latest`` is its target."""

    committed: Offsets
    latest: Offsets

    @classmethod
    def at(cls, committed: Offsets, latest: Offsets) -> Looked:
        """From the planner's own offsets."""
        return cls(committed=_kept(committed), latest=_kept(latest))

    def behind(self, committed: Offsets) -> int:
        """Items between ``committed`` and the end that was seen."""
        return length(between(committed, self.latest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The stored plan of the version that is closed next, whoever made it."""

    version: int
    ranges: Ranges

    @classmethod
    def by(cls, plan: Plan) -> Planned:
        """From the plan."""
        return cls(version=plan.version, ranges=_kept(plan.ranges))


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """An attempt is complete. ``counts`` as in :class:`RunResult`."""

    version: int
    attempt_id: str
    counts: Mapping[str, int]

    @classmethod
    def by(cls, manifest: StagedManifest) -> Staged:
        """From the attempt's manifest."""
        return cls(version=manifest.version, attempt_id=manifest.attempt_id, counts=_kept(manifest.counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """An attempt that somebody finished and nobody decided is taken as it is: nothing is staged."""

    version: int
    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What one version put into one sink."""

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """
    A version is closed. All but ``attempt_id`` is of the outcome that is stored.

    :param attempt_id: the attempt that this process offered
    :param mine: the stored outcome is the very one that this process made; true in exactly one process for each version
    :param lost: the stored outcome names another attempt, or none
    :param duration_ms: from the plan to the decision, through all tries
    :param schemas: sink → schema JSON in Spark's form
    """

    version: int
    attempt_id: str
    mine: bool
    lost: bool
    result: str
    ranges: Ranges
    next: Offsets
    counts: Mapping[str, int]
    outputs: Mapping[str, Output]
    schemas: Mapping[str, str]
    duration_ms: int

    @classmethod
    def by(cls, plan: Plan, offered: Outcome, stored: Outcome | None) -> Decided:
        """From the outcome that was offered and the one that is stored."""
        assert stored is not None
        outputs = {
            name: Output(rows=c.rows, bytes=sum(file.bytes for file in c.files), files=len(c.files))
            for name, c in stored.sinks.items()
        }
        return cls(
            version=plan.version,
            attempt_id=offered.attempt_id or "",
            mine=stored.nonce == offered.nonce,
            lost=stored.attempt_id != offered.attempt_id,
            result=stored.result,
            ranges=_kept(plan.ranges),
            next=_kept(stored.next),
            counts=_kept(stored.counts),
            outputs=_kept(outputs),
            schemas=_kept(stored.schemas),
            duration_ms=stored.duration_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The receipts of a version are stored: sink → ``applied``, ``skipped`` or ``unknown``."""

    version: int
    results: Mapping[str, str]
    duration_ms: int

    @classmethod
    def by(cls, receipts: Receipts) -> Published:
        """From the stored receipts."""
        results = {name: receipt.result for name, receipt in receipts.sinks.items()}
        return cls(version=receipts.version, results=_kept(results), duration_ms=receipts.duration_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Requested:
    """A request to the log: ``put``, ``get`` or ``list``; ``unknown``: the store did not say whether it was applied."""

    request: str
    unknown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkFound:
    """The Spark application that stages. ``ui`` is the address of its own pages while it runs, ``""`` where it has none."""

    application_id: str
    ui: str


Event: TypeAlias = Began | Ended | Looked | Planned | Staged | Adopted | Decided | Published | Requested | SparkFound
Listener: TypeAlias = Callable[[Event], object]


def _kept(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


class _Guarded:
    """A listener that has failed once is not called again: what it knows has a hole, and it must not fill the log."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._failed = False

    def __call__(self, event: Event) -> None:
        if self._failed:
            return
        try:
            self._listener(event)
        except Exception as error:
            self._failed = True
            what = (
                "a listener failed and is told nothing more of this run, which goes on: listener=%s event=%s error=%s"
            )
            name = getattr(self._listener, "__qualname__", type(self._listener).__name__)
            logger.warning(what, name, type(event).__name__, type(error).__name__)
            logger.debug("the listener's failure", exc_info=True)


_LISTENERS: ContextVar[tuple[_Guarded, ...]] = ContextVar("streamsem_listeners", default=())
_FACTS: ContextVar[Facts] = ContextVar("streamsem_facts", default=MappingProxyType({}))


@contextmanager
def heard_by(*listeners: Listener) -> Iterator[None]:
    """Tell ``listeners``, beside those there are, what is done in this context while the block runs."""
    token = _LISTENERS.set((*_LISTENERS.get(), *map(_Guarded, listeners)))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def tell(make: Callable[P, Event], *args: P.args, **kwargs: P.kwargs) -> None:
    """Hand the event that ``make(*args, **kwargs)`` gives to every listener; where there is none, nothing is made."""
    listeners = _LISTENERS.get()
    if not listeners:
        return
    try:
        event = make(*args, **kwargs)
    except Exception:
        logger.debug("an event could not be made", exc_info=True)
        return
    for listener in listeners:
        listener(event)


@contextmanager
def phase(name: Phase, **facts: str | int) -> Iterator[None]:
    """Tell when a phase begins and how it ends; its facts, and those of the phases around it, stand in each line of :func:`log_of` meanwhile."""
    known: Facts = MappingProxyType({**_FACTS.get(), **facts})
    token = _FACTS.set(known)
    tell(Began, phase=name, facts=known)
    try:
        yield
    except BaseException as error:
        tell(_failed, name, error)
        raise
    else:
        tell(Ended, phase=name)
    finally:
        _FACTS.reset(token)


def _failed(name: Phase, error: BaseException) -> Ended:
    return Ended(phase=name, error=type(error).__name__, truth=error.truth if isinstance(error, StreamsemError) else "")


def log_of(module: str) -> logging.Logger:
    """A module's logger, whose records have the facts as attributes: ``pipeline``, ``run_key``, ``version``, ``attempt_id``."""
    found = logging.getLogger(module)
    found.addFilter(_add_facts)
    return found


def _add_facts(record: logging.LogRecord) -> bool:
    for name, value in _FACTS.get().items():
        setattr(record, name, value)
    return True
