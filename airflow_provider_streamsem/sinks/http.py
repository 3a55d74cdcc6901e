"""
Effects by HTTP calls: rows become calls of an endpoint, part by part, with a ledger of the parts in the log (PROTOCOL.md, P4 and P5).

A call to the outside cannot be made exactly once by the caller alone: between the call and the note of it lies a moment in which everything may die. So one
chooses: call again (and perhaps repeat), or never call again (and perhaps lose). Only an endpoint that keeps keys can make the first choice harmless.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.errors import DataError, InvalidError, PublishError, StreamsemError, UnavailableError
from airflow_provider_streamsem.protocol.codec import sha256
from airflow_provider_streamsem.protocol.entries import Effects, Json, Receipt
from airflow_provider_streamsem.sinks.contract import Batch, EffectLedger
from airflow_provider_streamsem.sinks.endpoint import Address, Answer, Endpoint, address
from airflow_provider_streamsem.sinks.json_rows import check_types, json_rows
from airflow_provider_streamsem.sinks.operations import OPERATIONS
from airflow_provider_streamsem.sinks.staged import StagedSink, record_batches
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.dataset import open_dataset

VERSION_HEADER = "Streamsem-Version"
POSITION_HEADER = "Streamsem-Position"
_WAITS_S = (0.1, 0.5, 2.0)
_URL = r"https?://[^\s@#]+"
_NAME = r"[A-Za-z0-9-]{1,64}"
_NONE_LEFT_OUT = "a part of the rows is called again until the log notes that it is over: none is left out"
_REASONS: dict[str, tuple[str, ...]] = {
    "at_least_once": (
        _NONE_LEFT_OUT,
        "a crash may repeat the calls of a part. idempotent=True, where the endpoint performs each {header} once, makes it effectively once; "
        'delivery="at_most_once" repeats none, and may lose some',
    ),
    "effectively_once": (
        _NONE_LEFT_OUT,
        "every try of a call carries the same {header}; that the endpoint performs one key once is its promise (idempotent=True), and is not checked",
    ),
    "at_most_once": (
        "each part of the rows is claimed in the log before its first call, and no call is made twice; what a crash or an unclear answer leaves is counted "
        'unknown in the receipts. delivery="at_least_once" would lose none, and perhaps repeat some',
    ),
}


@dataclass(frozen=True, slots=True)
class HttpSink(StagedSink):
    """
    Rows as the JSON bodies of calls.

    Each call carries a key that is the same at every try of it. A redo is refused: what was called cannot be called back.

    :param staging: where rows wait for their calls, as Parquet: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param url: the endpoint; either this, without secrets, or ``conn_id``
    :param conn_id: an Airflow connection of type ``http``: host, login and password, headers in its extra
    :param endpoint: path at the connection's host
    :param method: ``POST``, ``PUT`` or ``PATCH``
    :param delivery: ``at_least_once``: a call whose end nobody knows is made again. ``at_most_once``: it never is, and counts as *unknown*
    :param operation: what the endpoint does with a record, of :data:`airflow_provider_streamsem.sinks.operations.OPERATIONS`: where doing it again changes
        nothing, at least once is ``effectively_once``
    :param idempotent: the endpoint promises to perform calls of one key once: then at least once is ``effectively_once``
    :param key_header: the header that carries the key
    :param record_id: columns that name a record; absent: a record is named by its place in the version
    :param records_per_call: 1: the body is an object; more: an array of up to so many
    :param part_rows: rows whose effects are noted together: as many may be repeated, or become *unknown*, after a crash. Never changes under one log
    :param on_refusal: ``fail`` (at least once): a record that the endpoint refuses stops the pipeline. ``record``: it is counted in the receipts and left out
    :param timeout_s: seconds for a connection, and then for the answer
    """

    redoes: ClassVar[bool] = False
    keeps_staged: ClassVar[bool] = False
    staging: str
    url: str | None = None
    conn_id: str | None = None
    endpoint: str = ""
    method: str = "POST"
    delivery: str = "at_least_once"
    operation: str = "send"
    idempotent: bool = False
    key_header: str = "Idempotency-Key"
    record_id: Sequence[str] = ()
    records_per_call: int = 1
    part_rows: int = 100
    on_refusal: str | None = None
    timeout_s: int = 30

    def __post_init__(self) -> None:
        where = "sink http:"
        open_dataset(arguments.text(f"{where} staging", self.staging))
        if (self.url is None) == (self.conn_id is None):
            raise InvalidError(f"{where} exactly one of url and conn_id must be given")
        if self.url is not None:
            if "@" in str(self.url):  # not quoted: it may be a password
                raise InvalidError(f"{where} url must hold no credentials", accepted="conn_id=")
            arguments.text(f"{where} url", self.url, pattern=_URL, accepted="http:// or https://, without credentials")
        else:
            arguments.text(f"{where} conn_id", self.conn_id)
        arguments.text(f"{where} endpoint", self.endpoint, pattern=r"[^\s#]*", accepted="a path without spaces")
        if self.url is not None and self.endpoint:
            raise InvalidError(f"{where} endpoint belongs to conn_id; a url is whole", given=self.endpoint)
        arguments.choice(f"{where} method", self.method, ("POST", "PUT", "PATCH"))
        arguments.text(f"{where} key_header", self.key_header, pattern=_NAME, accepted=_NAME)
        object.__setattr__(self, "record_id", arguments.words(f"{where} record_id", self.record_id))
        arguments.whole(f"{where} records_per_call", self.records_per_call, least=1)
        arguments.whole(f"{where} part_rows", self.part_rows, least=1)
        arguments.whole(f"{where} timeout_s", self.timeout_s, least=1)
        if self.record_id and self.records_per_call != 1:
            raise InvalidError(f"{where} record_id names one record, so records_per_call must be 1")
        self._check_delivery(where)

    def _check_delivery(self, where: str) -> None:
        arguments.flag(f"{where} idempotent", self.idempotent)
        arguments.choice(f"{where} operation", self.operation, tuple(OPERATIONS))
        is_harmless = self.idempotent or OPERATIONS[self.operation].idempotent
        words = ("at_least_once", "at_most_once", *(("effectively_once",) if is_harmless else ()))
        arguments.choice(f"{where} delivery", self.delivery, words)
        claims = self.delivery == "at_most_once"
        if claims and self.idempotent:
            raise InvalidError(
                f"{where} at_most_once makes no call twice, so idempotent says nothing", accepted="at_least_once"
            )
        if is_harmless and not claims:
            object.__setattr__(self, "delivery", "effectively_once")
        if self.on_refusal is None:
            object.__setattr__(self, "on_refusal", "record" if claims else "fail")
        # A refusal under a claim is over: the record cannot be sent again after it was mended.
        arguments.choice(f"{where} on_refusal", self.on_refusal, ("record",) if claims else ("fail", "record"))

    @property
    def place(self) -> str:
        """Where rows are staged."""
        return self.staging

    @property
    def reasons(self) -> tuple[str, ...]:
        """What a crash between a call and the note of it does to a record."""
        found = tuple(reason.format(header=self.key_header) for reason in _REASONS[self.delivery])
        operation = OPERATIONS[self.operation]
        if operation.idempotent and not self.idempotent and self.delivery == "effectively_once":
            found = (
                _NONE_LEFT_OUT,
                f"what is repeated changes nothing, by the endpoint's promise ({self.operation}): {operation.why}",
            )
        elif self.delivery == "at_least_once":
            found += (f"{self.operation}: {operation.why}. Instead: {operation.instead}",)
        if self.record_id and self.idempotent:
            named = ", ".join(self.record_id)
            found += (
                f"records with equal {named} are one to the endpoint: a later one with other values is not performed",
            )
        if self.on_refusal == "record":
            found += ("records that the endpoint refuses are counted in the receipts, and are not there",)
        return found

    def guarded(self) -> Json:
        """What decides which rows are one part and one call, and their keys: for a version that is under way they must stay."""
        return {
            "type": "http",
            "staging": normalised(self.staging),
            "claims": self.delivery == "at_most_once",
            "part_rows": self.part_rows,
            "records_per_call": self.records_per_call,
            "key_header": self.key_header,
            "record_id": list(self.record_id),
        }

    def accept(self, schema: str) -> str:
        """JSON must have every column's type, ``record_id`` must be there, and the connection must be one that can be called."""
        names = check_types(schema)
        missing = sorted({*self.record_id} - {*names}) if names else []
        if missing:
            raise DataError("columns of record_id are missing; nothing became visible", missing=missing, found=names)
        self._address()
        return schema

    def publish(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """Perform, part by part, what nobody has written down yet."""
        return _Parts(self, batch, effects).publish()

    def skip(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """
        Give up the parts of which nothing is written down.

        Without claims nobody can say that none of their calls was made: they become *unknown*.
        """
        return _Parts(self, batch, effects).skip()

    def marker(self, pipeline_uuid: str, sink: str) -> tuple[int, str] | None:
        """An endpoint keeps none: the ledger does."""
        return None

    def _address(self) -> Address:
        if self.url is not None:
            return Address(self.url)
        found = address(connection(self.conn_id or ""), self.endpoint)
        if self.key_header.lower() in {name.lower() for name in found.headers}:
            raise InvalidError(
                "the key of a call is not a connection's to give", conn_id=self.conn_id, header=self.key_header
            )
        return found

    def key(self, batch: Batch, part: int, index: int, row: Json) -> str:
        """The key of the call that begins with the record ``index`` of a part: the same at every try, and another call's never."""
        if self.record_id and all(row[name] is not None for name in self.record_id):
            named = json.dumps([row[name] for name in self.record_id], ensure_ascii=False, separators=(",", ":"))
            return f"{batch.pipeline_uuid}-{batch.sink}-{sha256(named.encode())}"
        return f"{batch.pipeline_uuid}-{batch.sink}-{batch.root}-{part}-{index}"


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of a part. ``index`` of its first row in the part, ``position`` in the version."""

    index: int
    position: int
    rows: int
    key: str
    body: bytes


class _Parts:
    """One entry to publishing a batch."""

    def __init__(self, sink: HttpSink, batch: Batch, effects: EffectLedger) -> None:
        self._sink, self._batch, self._effects = sink, batch, effects
        self._rows = batch.committable.rows
        self._left: Iterator[list[Any]] | None = None
        self._at = 0

    def publish(self) -> Receipt:
        known: list[Effects] = []
        with Endpoint(self._sink._address(), self._sink.method, self._sink.timeout_s) as endpoint:
            perform = self._performed_once if self._sink.delivery == "at_most_once" else self._performed
            fault: StreamsemError | None = None
            for part in self._all():
                found = self._effects.known(part)
                if found is None:
                    if fault is not None:
                        raise fault
                    found, fault = perform(endpoint, part)
                known.append(found)
        return _receipt(known)

    def skip(self) -> Receipt:
        return _receipt([self._effects.known(part) or self._given_up(part) for part in self._all()])

    def _given_up(self, part: int) -> Effects:
        rows = self._rows_of(part)
        if self._sink.delivery == "at_most_once" and self._effects.claim(part):
            return self._effects.record(part, done=0, skipped=rows)
        return self._effects.record(part, done=0, unknown=rows)

    def _performed(self, endpoint: Endpoint, part: int) -> tuple[Effects, None]:
        """Every call until its answer is clear, and then the note."""
        done = refused = 0
        for call in self._calls(part):
            answer = self._insisted(endpoint, call)
            where: dict[str, object] = {
                "version": self._batch.version, "sink": self._batch.sink, "part": part, "record": call.index, "status": answer.status,
            }  # fmt: skip
            if answer.kind == "unclear":
                raise UnavailableError(
                    "the endpoint gave no clear answer; the call may have been performed, and is made again by the next try",
                    problem=answer.problem,
                    **where,
                )
            if answer.kind == "done":
                done += call.rows
            elif self._sink.on_refusal == "record" and not answer.is_about_the_caller:
                refused += call.rows
            else:
                raise PublishError(
                    "the endpoint refuses a call; those before it in this part were performed, and are made again",
                    **where,
                )
        return self._effects.record(part, done=done, refused=refused), None

    def _insisted(self, endpoint: Endpoint, call: _Call) -> Answer:
        answer = endpoint.call(call.body, self._headers(call))
        for wait_s in _WAITS_S:
            if answer.kind != "unclear":
                break
            SYSTEM_CLOCK.sleep(wait_s)
            answer = endpoint.call(call.body, self._headers(call))
        return answer

    def _headers(self, call: _Call) -> dict[str, str]:
        place = {VERSION_HEADER: str(self._batch.version), POSITION_HEADER: str(call.position)}
        return {self._sink.key_header: call.key, **place}

    def _performed_once(self, endpoint: Endpoint, part: int) -> tuple[Effects, StreamsemError | None]:
        """A claim, every call once, and then the note. What can fail without a call is done before the claim."""
        calls = self._calls(part)
        endpoint.reach()
        if not self._effects.claim(part):
            return self._of_another(part), None
        counts = {"done": 0, "refused": 0, "unknown": 0}
        turned_away: Answer | None = None
        for call in calls:
            answer = endpoint.call(call.body, self._headers(call))
            counts[answer.kind if answer.kind in counts else "unknown"] += call.rows
            turned_away = answer if answer.is_about_the_caller else turned_away
        return self._effects.record(part, **counts), self._fault(part, counts, turned_away)

    def _fault(self, part: int, counts: dict[str, int], turned_away: Answer | None) -> StreamsemError | None:
        """Why no other part should be claimed: its records would be lost as those of this one were."""
        where: dict[str, object] = {"version": self._batch.version, "sink": self._batch.sink, "part": part, **counts}
        if turned_away is not None:
            what = "the endpoint turns the caller away; parts after this one were not claimed, and wait"
            return PublishError(what, status=turned_away.status, **where)
        if counts["unknown"] == self._rows_of(part):
            what = "the endpoint gave no clear answer for a whole part; parts after this one were not claimed, and wait"
            return UnavailableError(what, **where)
        return None

    def _of_another(self, part: int) -> Effects:
        """What became of a part that another entry has claimed."""
        found = self._effects.known(part)
        if found is None and not self._effects.may_close:
            raise UnavailableError(
                "another entry has claimed a part of the effects, and has not said what became of it; a retry of the run that committed the version, or "
                "`streamsem skip`, closes it as unknown",
                version=self._batch.version,
                sink=self._batch.sink,
                part=part,
            )
        return found or self._effects.record(part, done=0, unknown=self._rows_of(part))

    def _all(self) -> range:
        return range(-(-self._rows // self._sink.part_rows))

    def _rows_of(self, part: int) -> int:
        return min(self._sink.part_rows, self._rows - part * self._sink.part_rows)

    def _calls(self, part: int) -> list[_Call]:
        """The calls of a part. Parts are asked for in order; those before it that nobody asked for are passed over."""
        if self._left is None:
            self._left = _pieces(record_batches(self._sink.staging, self._batch), self._sink.part_rows)
        for _ in range(part - self._at):
            next(self._left)
        rows = [row for piece in next(self._left) for row in json_rows(piece)]
        self._at = part + 1
        size = self._sink.records_per_call
        calls = []
        for index in range(0, len(rows), size):
            group = rows[index : index + size]
            body = json.dumps(group if size > 1 else group[0], ensure_ascii=False, allow_nan=False).encode()
            key = self._sink.key(self._batch, part, index, group[0])
            calls.append(_Call(index, part * self._sink.part_rows + index, len(group), key, body))
        return calls


def _pieces(batches: Iterator[Any], rows: int) -> Iterator[list[Any]]:
    """Record batches cut and put together anew, so that each list holds ``rows`` rows, and the last one the rest."""
    held: list[Any] = []
    lacking = rows
    for batch in batches:
        while batch.num_rows:
            held.append(batch.slice(0, lacking))
            batch = batch.slice(held[-1].num_rows)
            lacking -= held[-1].num_rows
            if not lacking:
                yield held
                held, lacking = [], rows
    if held:
        yield held


def _receipt(known: list[Effects]) -> Receipt:
    done, refused, unknown, skipped = (
        sum(getattr(effects, name) for effects in known) for name in ("done", "refused", "unknown", "skipped")
    )
    detail = {"parts": len(known), "refused": refused, "unknown": unknown, "skipped": skipped}
    if unknown:
        return Receipt(result="unknown", rows=done, detail=detail)
    # *skipped* says that nothing of the version is there.
    return Receipt(result="skipped" if skipped and not done else "applied", rows=done, detail=detail)
