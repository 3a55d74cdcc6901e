"""Publishes a batch by HTTP calls, in chunks and rounds, and records the results in the commit log (PROTOCOL.md, P4 and P5)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Protocol

from airflow_provider_streamsem.clock import tries
from airflow_provider_streamsem.connectors.http.effects import EffectLedger
from airflow_provider_streamsem.connectors.http.endpoint import Address, CallResult, Endpoint
from airflow_provider_streamsem.connectors.http.rate import Pace
from airflow_provider_streamsem.connectors.json_rows.rows import json_rows
from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.connectors.staged_parquet.sink import record_batches
from airflow_provider_streamsem.errors import LogDamagedError, PublishError, StreamsemError, UnavailableError
from airflow_provider_streamsem.protocol.entries import Effects, Json, Receipt

VERSION_HEADER = "Streamsem-Version"
POSITION_HEADER = "Streamsem-Position"
_UNCLEAR_WAITS_S = (0.1, 0.5, 2.0)
_LONG_WAIT_S = 5.0
_COUNTS = ("done", "refused", "unknown", "skipped")


@dataclass(frozen=True, slots=True)
class _Call:
    """``index`` is the position of the call's first row in the chunk, ``position`` that in the version; both start at 0."""

    index: int
    position: int
    rows: int
    key: str
    body: bytes


@dataclass(frozen=True, slots=True)
class _Round:
    """Performs the last ``rows`` records of the chunk, which the previous rounds have not performed."""

    chunk: int
    number: int
    rows: int


class _Sink(Protocol):
    """The arguments of ``HttpSink`` that determine its calls."""

    @property
    def staging(self) -> str: ...
    @property
    def method(self) -> str: ...
    @property
    def delivery(self) -> str: ...
    @property
    def key_header(self) -> str: ...
    @property
    def records_per_call(self) -> int: ...
    @property
    def chunk_rows(self) -> int: ...
    @property
    def on_refusal(self) -> str | None: ...
    @property
    def timeout_s(self) -> int: ...
    @property
    def max_per_s(self) -> int | None: ...
    @property
    def max_wait_s(self) -> int: ...
    def address(self) -> Address: ...
    def key(self, batch: SinkCommit, chunk: int, index: int, row: Json) -> str: ...


class Publisher:
    """
    One publisher of one batch: performs or skips its calls.

    A round ends early in three cases: the endpoint refuses a call, the endpoint defers a call for too long, or the next wait is long. The publisher then
    records the progress of the round. So if it dies during a long wait, no call is repeated and no claim is open.
    """

    def __init__(self, sink: _Sink, batch: SinkCommit) -> None:
        self._sink, self._batch, self._effects = sink, batch, EffectLedger(batch)
        self._claims = sink.delivery == "at_most_once"
        self._rows = batch.committable.rows
        self._clock = self._effects.clock
        self._pace = Pace(self._clock, sink.max_per_s)
        self._total: Counter[str] = Counter()
        self._fault: StreamsemError | None = None
        self._released: tuple[int, int] | None = None
        self._chunks: Iterator[list[Any]] | None = None
        self._chunk = -1
        self._calls: list[_Call] = []
        self._results: list[str] = []

    def publish(self) -> Receipt:
        """Make the calls whose result no publisher has recorded, and return the receipt."""
        sink = self._sink
        with Endpoint(sink.address(), sink.method, sink.timeout_s, self._clock) as endpoint:
            return self._run_rounds(lambda at: self._performed(endpoint, at))

    def skip(self) -> Receipt:
        """Record the records whose result no publisher has recorded as skipped, or as unknown if they may have been sent. Makes no call."""
        return self._run_rounds(self._skip_or_mark_unknown)

    def _run_rounds(self, perform: Callable[[_Round], Effects]) -> Receipt:
        """``perform`` completes a round that has no recorded effects, and returns its effects."""
        chunks = range(-(-self._rows // self._sink.chunk_rows))
        for chunk in chunks:
            at: _Round | None = _Round(chunk, 0, self._rows_of(chunk))
            while at is not None:
                if self._fault is None:
                    # Wait before reading the recorded effects, because another publisher may complete the chunk during the wait.
                    self._pace.wait()
                effects = self._effects.known(at.chunk, at.number)
                if effects is None:
                    if self._fault is not None:
                        raise self._fault
                    effects = perform(at)
                at = self._after(at, effects)
        if self._fault is not None:
            raise self._fault
        detail = {"chunks": len(chunks), **{name: self._total[name] for name in _COUNTS[1:]}}
        if self._total["unknown"]:
            return Receipt(result="unknown", rows=self._total["done"], detail=detail)
        # The result ``skipped`` means that the sink has no row of the version, so it is not used if some rows were sent.
        is_skipped = self._total["skipped"] and not self._total["done"]
        return Receipt(result="skipped" if is_skipped else "applied", rows=self._total["done"], detail=detail)

    def _after(self, at: _Round, effects: Effects) -> _Round | None:
        counts = {name: getattr(effects, name) for name in _COUNTS}
        if sum(counts.values()) + effects.left != at.rows or min(effects.left, *counts.values()) < 0:
            raise LogDamagedError(
                "the recorded effects of a round do not add up to its number of records",
                invariant="I18",
                **self._where(at),
                expected=at.rows,
                left=effects.left,
                **counts,
            )
        self._total.update(counts)
        return _Round(at.chunk, at.number + 1, effects.left) if effects.left else None

    def _performed(self, endpoint: Endpoint, at: _Round) -> Effects:
        """A call without a clear answer is repeated. With ``at_most_once``, only if the endpoint has certainly not performed it."""
        calls = self._calls_of(at.chunk)
        if self._claims:
            endpoint.reach()
            if not self._effects.claim(at.chunk, at.number):
                return self._effects_of_another(at)
        first = (self._rows_of(at.chunk) - at.rows) // self._sink.records_per_call
        results = self._results
        results += [""] * (first - len(results))  # performed by another publisher
        error: StreamsemError | None = None
        redirect = 0
        while error is None and len(results) < len(calls):
            if self._pace.wait_s >= _LONG_WAIT_S and (self._claims or len(results) > first):
                break
            self._pace.wait()
            call = calls[len(results)]
            result = self._call_result(endpoint, call)
            error = self._deferral(at, result) if result.kind == "deferred" else self._refusal(at, call, result)
            if error is None and result.kind != "deferred":
                results.append(result.kind if result.kind in _COUNTS else "unknown")
                redirect = result.status if result.kind == "redirect" else redirect
                self._pace.record_answer()
        counts = self._counts(first)
        if error is not None and not self._claims and not counts:
            raise error
        left = at.rows - counts.total()
        effects = self._effects.record(at.chunk, at.number, done=counts["done"], refused=counts["refused"], unknown=counts["unknown"], left=left)  # fmt: skip
        if effects.left:
            self._released = at.chunk, at.number + 1
            if error is not None:
                raise error
        if self._claims:
            self._fault = self._fault or self._fault_of(at, counts, redirect)
        return effects

    def _counts(self, first: int) -> Counter[str]:
        counts: Counter[str] = Counter()
        for call, kind in zip(self._calls[first:], self._results[first:], strict=False):
            counts[kind] += call.rows
        return counts

    def _call_result(self, endpoint: Endpoint, call: _Call) -> CallResult:
        """Make a call, and return its result. Without claims, repeat a call whose result is not clear, up to three times."""
        for _ in tries(() if self._claims else _UNCLEAR_WAITS_S, self._clock):
            result = endpoint.call(call.body, self._headers(call))
            if result.kind not in ("unclear", "unsent"):
                break
        return result

    def _headers(self, call: _Call) -> dict[str, str]:
        position_headers = {VERSION_HEADER: str(self._batch.version), POSITION_HEADER: str(call.position)}
        return {self._sink.key_header: call.key, **position_headers}

    def _deferral(self, at: _Round, result: CallResult) -> StreamsemError | None:
        """Reduce the rate after a deferred call. Returns an error if the total wait for the call would exceed ``max_wait_s``."""
        wait_s = self._pace.backoff_s(result.retry_after_s)
        if self._pace.waited_s + wait_s <= self._sink.max_wait_s:
            self._pace.record_deferral(wait_s)
            return None
        again = datetime.fromtimestamp(self._clock.now_ms() // 1000 + int(wait_s) + 1, timezone.utc)
        first = (self._rows_of(at.chunk) - at.rows) // self._sink.records_per_call
        return UnavailableError(
            "the endpoint limits the rate of calls, and the wait for a call would exceed max_wait_s; the endpoint did not perform the call, no record is lost, "
            "and the next try begins with this call",
            **self._where(at),
            status=result.status,
            done=self._total["done"] + self._counts(first)["done"],
            rows=self._rows,
            max_wait_s=self._sink.max_wait_s,
            run_again_at=again.isoformat(),
        )

    def _refusal(self, at: _Round, call: _Call, result: CallResult) -> StreamsemError | None:
        """The error ends the round before this call, so that the next round begins with it. ``None``: the round continues."""
        where = {**self._where(at), "record": call.index, "status": result.status}
        if result.kind == "caller_rejected":
            return PublishError(
                "the endpoint rejects the caller: credentials, address or method are wrong. It did not perform the call, no record is lost, and the "
                "next try begins with this call",
                **where,
            )
        if result.kind == "unsent" and self._claims:
            return UnavailableError(
                "the endpoint cannot be reached; the call was not sent, no record is lost, and the next try begins with that call",
                problem=result.problem,
                **where,
            )
        if self._claims or result.kind == "done":
            return None
        if result.kind in ("unclear", "unsent"):
            return UnavailableError(
                "the endpoint did not report the result of a request; the call may have been performed, and the next try repeats it",
                problem=result.problem,
                **where,
            )
        if self._sink.on_refusal == "record" and result.kind == "refused":
            return None
        return PublishError(
            "the endpoint refuses or redirects a call; the next try begins with this call, and does not repeat earlier calls",
            **where,
        )

    def _fault_of(self, at: _Round, counts: Counter[str], redirect: int) -> StreamsemError | None:
        """Return an error if the publisher must not claim other rounds, because their records would be lost as those of this round."""
        where = {**self._where(at), **{name: counts[name] for name in _COUNTS[:3]}}
        if redirect:
            summary = "the endpoint redirects a call, which the sink does not follow; the results of the chunk are recorded, and later chunks are not claimed"
            return PublishError(summary, status=redirect, **where)
        if counts["unknown"] == self._rows_of(at.chunk):
            summary = "the endpoint did not report the result of any call of a chunk; its records are counted as unknown, and later chunks are not claimed"
            return UnavailableError(summary, **where)
        return None

    def _effects_of_another(self, at: _Round) -> Effects:
        """A round without a recorded result is recorded as unknown, unless this publisher must not close the claim (P5)."""
        effects = self._effects.known(at.chunk, at.number)
        # This publisher has ended its previous round early, and another publisher has claimed this round since. So that publisher runs now (P5).
        may_close = self._batch.may_close_claims and self._released != (at.chunk, at.number)
        if effects is None and not may_close:
            raise UnavailableError(
                "another publisher has claimed a chunk of the batch and has not recorded its result, so this publisher makes no call",
                **self._where(at),
            ).advising(
                "run again later, when that publisher has ended. If it has died, retry the run that committed the version, or use `streamsem skip`: "
                "both record the chunk as unknown."
            )
        return effects or self._effects.record(at.chunk, at.number, done=0, unknown=at.rows)

    def _skip_or_mark_unknown(self, at: _Round) -> Effects:
        if self._claims and self._effects.claim(at.chunk, at.number):
            return self._effects.record(at.chunk, at.number, done=0, skipped=at.rows)
        return self._effects.record(at.chunk, at.number, done=0, unknown=at.rows)

    def _where(self, at: _Round) -> dict[str, Any]:
        return {"version": self._batch.version, "sink": self._batch.sink, "chunk": at.chunk}

    def _rows_of(self, chunk: int) -> int:
        return min(self._sink.chunk_rows, self._rows - chunk * self._sink.chunk_rows)

    def _calls_of(self, chunk: int) -> list[_Call]:
        """Return the calls of a chunk. Must be called with ascending chunk numbers. Rows of chunks in between are skipped."""
        if chunk == self._chunk:
            return self._calls
        if self._chunks is None:
            self._chunks = _regrouped(record_batches(self._sink.staging, self._batch), self._sink.chunk_rows)
        for _ in range(chunk - self._chunk - 1):
            next(self._chunks)
        rows = [row for batch in next(self._chunks) for row in json_rows(batch)]
        size = self._sink.records_per_call
        self._chunk, self._calls, self._results = chunk, [], []
        for index in range(0, len(rows), size):
            group = rows[index : index + size]
            body = json.dumps(group if size > 1 else group[0], ensure_ascii=False, allow_nan=False).encode()
            key = self._sink.key(self._batch, chunk, index, group[0])
            self._calls.append(_Call(index, chunk * self._sink.chunk_rows + index, len(group), key, body))
        return self._calls


def _regrouped(batches: Iterator[Any], rows: int) -> Iterator[list[Any]]:
    """Yield lists of record batches with ``rows`` rows in total; the last list has the remaining rows."""
    group: list[Any] = []
    missing_rows = rows
    for batch in batches:
        while batch.num_rows:
            group.append(batch.slice(0, missing_rows))
            batch = batch.slice(group[-1].num_rows)
            missing_rows -= group[-1].num_rows
            if not missing_rows:
                yield group
                group, missing_rows = [], rows
    if group:
        yield group
