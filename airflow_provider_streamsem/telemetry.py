"""
Events that a run emits to listeners: statistics, spans, logs and lineage.

Emitting events never affects the result of a run: this module catches every exception that occurs while an event is built or handled. Without a listener no
event is built. Events contain immutable copies. A listener runs in the thread of the run, so a slow listener slows the run down.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, ParamSpec, TypeAlias

from airflow_provider_streamsem.errors import StreamsemError
from airflow_provider_streamsem.protocol.entries import Outcome, Plan, Receipts, StagedManifest
from airflow_provider_streamsem.protocol.kinds.registry import KINDS
from airflow_provider_streamsem.protocol.offsets import Offsets, Ranges, between, length

P = ParamSpec("P")
Facts: TypeAlias = Mapping[str, str | int]
Phase: TypeAlias = Literal["run", "plan", "stage", "collect", "commit", "publish"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseStarted:
    """
    A phase started. Phases nest, and each started phase ends.

    :param facts: ``pipeline`` and ``run_key``; ``version`` from the *plan* phase on; ``attempt_id`` from the *stage* phase on
    """

    phase: Phase
    facts: Facts


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded:
    """
    The innermost phase ended.

    :param error: class name of the exception that ended the phase; ``""`` if there was none
    :param summary: a fixed sentence without values. ``""`` for an exception of another package, whose message may contain secrets
    """

    phase: Phase
    error: str = ""
    summary: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePolled:
    """
    The planner polled the source.

    :param committed: next offset to read of each partition
    :param latest: end offset of each partition, exclusive; in a drain, its target
    """

    committed: Offsets
    latest: Offsets

    @classmethod
    def from_offsets(cls, committed: Offsets, latest: Offsets) -> SourcePolled:
        """Build the event from the planner's offsets."""
        return cls(committed=_frozen(committed), latest=_frozen(latest))

    def behind(self, committed: Offsets, items_in: Callable[[Ranges], int] = length) -> int:
        """Return the number of items between ``committed`` and ``latest``. ``items_in`` counts those of a range."""
        return items_in(between(committed, self.latest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The stored plan of the version that this run closes next. Another run may have created it."""

    version: int
    ranges: Ranges

    @classmethod
    def from_plan(cls, plan: Plan) -> Planned:
        """Build the event from the plan."""
        return cls(version=plan.version, ranges=_frozen(plan.ranges))


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """An attempt is completely staged. ``counts`` is as in :class:`RunResult`."""

    version: int
    attempt_id: str
    counts: Mapping[str, int]

    @classmethod
    def from_manifest(cls, manifest: StagedManifest) -> Staged:
        """Build the event from the attempt's manifest."""
        return cls(version=manifest.version, attempt_id=manifest.attempt_id, counts=_frozen(manifest.counts))


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """The run adopts a complete attempt of another process whose version is still open. It stages nothing itself."""

    version: int
    attempt_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Output of one version to one sink."""

    rows: int
    bytes: int
    files: int


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionClosed:
    """
    A version was closed. All fields except ``attempt_id``, ``mine`` and ``lost`` describe the stored plan and outcome.

    :param kind: the kind of the version, such as ``batch`` or ``rewrite``
    :param attempt_id: the attempt that this process tried to commit; ``""`` for an abort
    :param mine: whether this process created the stored outcome; true in exactly one process for each version
    :param lost: whether another attempt was committed, or the version was aborted, instead of the attempt of this process
    :param duration_ms: milliseconds from the plan to the outcome, across all attempts
    :param schemas: sink → schema as Spark JSON
    :param failed_gates: the conditions of gates that the committed rows do not satisfy, a sentence each
    """

    version: int
    kind: str
    attempt_id: str
    mine: bool
    lost: bool
    result: str
    ranges: Ranges
    next: Offsets
    counts: Mapping[str, int]
    outputs: Mapping[str, Output]
    schemas: Mapping[str, str]
    failed_gates: Sequence[str]
    duration_ms: int

    @property
    def has_rows(self) -> bool:
        """Whether versions of this kind read records. The ``outputs`` of others, such as a compaction, are no new rows."""
        return KINDS[self.kind].has_rows

    @classmethod
    def from_outcomes(cls, plan: Plan, proposed: Outcome, stored: Outcome | None) -> VersionClosed:
        """Build the event from the outcome that this process tried to create and the stored one."""
        assert stored is not None
        outputs = {
            name: Output(rows=c.rows, bytes=sum(file.bytes for file in c.files), files=len(c.files))
            for name, c in stored.sinks.items()
        }
        return cls(
            version=plan.version,
            kind=plan.work.kind,
            attempt_id=proposed.attempt_id or "",
            mine=stored.nonce == proposed.nonce,
            lost=proposed.attempt_id is not None and stored.attempt_id != proposed.attempt_id,
            result=stored.result,
            ranges=_frozen(plan.ranges),
            next=_frozen(stored.next),
            counts=_frozen(stored.counts),
            outputs=_frozen(outputs),
            schemas=_frozen(stored.schemas),
            failed_gates=tuple(failed.found for failed in stored.failed_gates),
            duration_ms=stored.duration_ms,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The receipts of a version are stored. ``results``: sink → ``applied``, ``skipped`` or ``unknown``."""

    version: int
    results: Mapping[str, str]
    duration_ms: int

    @classmethod
    def from_receipts(cls, receipts: Receipts) -> Published:
        """Build the event from the stored receipts."""
        results = {name: receipt.result for name, receipt in receipts.sinks.items()}
        return cls(version=receipts.version, results=_frozen(results), duration_ms=receipts.duration_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRequest:
    """A request to the log: ``put``, ``get`` or ``list``. ``unknown``: whether the store did not report a result."""

    request: str
    unknown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStarted:
    """Identifies the Spark application that stages the attempts. ``ui`` is the URL of its Spark UI; ``""`` if it has none."""

    application_id: str
    ui: str


Event: TypeAlias = (
    PhaseStarted
    | PhaseEnded
    | SourcePolled
    | Planned
    | Staged
    | Adopted
    | VersionClosed
    | Published
    | LogRequest
    | SparkStarted
)
Listener: TypeAlias = Callable[[Event], object]


def _frozen(mapping: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType(dict(mapping))


class _Guarded:
    """Wraps a listener, and stops calling it after its first exception. Its data is then incomplete, and repeated failures would flood the log."""

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
            message = (
                "a telemetry listener raised an exception and receives no further events of this run. The run is not affected. "
                "listener=%s event=%s error=%s"
            )
            name = getattr(self._listener, "__qualname__", type(self._listener).__name__)
            logger.warning(message, name, type(event).__name__, type(error).__name__)
            logger.debug("the traceback of the listener's exception", exc_info=True)


_LISTENERS: ContextVar[tuple[_Guarded, ...]] = ContextVar("streamsem_listeners", default=())
_FACTS: ContextVar[Facts] = ContextVar("streamsem_facts", default=MappingProxyType({}))


@contextmanager
def listening(*listeners: Listener) -> Iterator[None]:
    """Add ``listeners`` to the active listeners of this context within the block."""
    token = _LISTENERS.set((*_LISTENERS.get(), *map(_Guarded, listeners)))
    try:
        yield
    finally:
        _LISTENERS.reset(token)


def emit(make: Callable[P, Event], *args: P.args, **kwargs: P.kwargs) -> None:
    """Build the event ``make(*args, **kwargs)`` and pass it to every listener. Without a listener no event is built."""
    listeners = _LISTENERS.get()
    if not listeners:
        return
    try:
        event = make(*args, **kwargs)
    except Exception:
        logger.debug("an event could not be built", exc_info=True)
        return
    for listener in listeners:
        listener(event)


@contextmanager
def phase(name: Phase, **facts: str | int) -> Iterator[None]:
    """Emit the start and the end of a phase. Within it, each record of a logger from :func:`log_of` has the facts of this phase and of all enclosing ones."""
    known: Facts = MappingProxyType({**_FACTS.get(), **facts})
    token = _FACTS.set(known)
    emit(PhaseStarted, phase=name, facts=known)
    try:
        yield
    except BaseException as error:
        emit(_failed, name, error)
        raise
    else:
        emit(PhaseEnded, phase=name)
    finally:
        _FACTS.reset(token)


def _failed(name: Phase, error: BaseException) -> PhaseEnded:
    return PhaseEnded(
        phase=name, error=type(error).__name__, summary=error.summary if isinstance(error, StreamsemError) else ""
    )


def log_of(module: str) -> logging.Logger:
    """Return the logger of a module. Its records have the facts as attributes: ``pipeline``, ``run_key``, ``version``, ``attempt_id``."""
    module_logger = logging.getLogger(module)
    module_logger.addFilter(_add_facts)
    return module_logger


def _add_facts(record: logging.LogRecord) -> bool:
    for name, value in _FACTS.get().items():
        setattr(record, name, value)
    return True
