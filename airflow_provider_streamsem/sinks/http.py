"""
Effects by HTTP calls: rows become calls of an endpoint, part by part, with a ledger of the parts in the log (PROTOCOL.md, P4 and P5).

A call to the outside cannot be made exactly once by the caller alone: between the call and the note of it lies a moment in which everything may die. So one
chooses: call again (and perhaps repeat), or never call again (and perhaps lose). Only an endpoint that keeps keys can make the first choice harmless.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar
from urllib.parse import urlsplit

from airflow_provider_streamsem import arguments, telemetry
from airflow_provider_streamsem.connections import clear_text_warning, connection
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.protocol.codec import sha256
from airflow_provider_streamsem.protocol.entries import Json, Receipt
from airflow_provider_streamsem.sinks import keyed_rows
from airflow_provider_streamsem.sinks.contract import Batch, EffectLedger, SinkMarker
from airflow_provider_streamsem.sinks.endpoint import NOT_PERFORMED_TEXT, Address, address
from airflow_provider_streamsem.sinks.http_calls import Publication
from airflow_provider_streamsem.sinks.json_rows import check_types
from airflow_provider_streamsem.sinks.operations import OPERATIONS
from airflow_provider_streamsem.sinks.staged import StagedSink
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.dataset import open_dataset

logger = telemetry.log_of(__name__)

_URL = r"https?://[^\s@#]+"
_NAME = r"[A-Za-z0-9-]{1,64}"
_NONE_LEFT_OUT = "the calls of a part are made again until the log records how each ended: no record is left out"
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
        "each part of the rows is claimed in the log before its first call, and no call is performed twice: only a call that the endpoint says it did not "
        f"perform ({NOT_PERFORMED_TEXT}), or that could not be sent, is sent again. Records that a crash or an unclear answer leaves are "
        "counted unknown in the receipts. "
        'delivery="at_least_once" would lose none, and perhaps repeat some',
    ),
}


@dataclass(frozen=True, slots=True)
class HttpSink(StagedSink):
    """
    Rows as the JSON bodies of calls.

    Each call carries a key that is the same at every try of it. A redo is refused: a call cannot be taken back.

    Calls are made one after the other. Where the endpoint limits their rate, the sink waits as long as ``Retry-After`` asks, and then calls more slowly.

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
    :param part_rows: rows whose effects are recorded together: as many may be repeated, or become *unknown*, after a crash. Never changes under one log
    :param on_refusal: ``fail`` (at least once): a record that the endpoint refuses stops the pipeline. ``record``: it is counted in the receipts and left out
    :param timeout_s: seconds for a connection, and then for the answer
    :param max_per_s: calls per second that are never exceeded; absent: as fast as the endpoint answers
    :param max_wait_s: the longest wait, in seconds, for one call that the endpoint defers; then the run fails, records how far it came, and may be retried
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
    max_per_s: int | None = None
    max_wait_s: int = 300

    def __post_init__(self) -> None:
        where = "sink http:"
        open_dataset(arguments.text(f"{where} staging", self.staging))
        if (self.url is None) == (self.conn_id is None):
            raise InvalidError(f"{where} exactly one of url and conn_id must be given")
        if self.url is not None:
            if "@" in str(self.url):  # not quoted: it may be a password
                raise InvalidError(f"{where} url must hold no credentials", accepted="conn_id=")
            arguments.text(f"{where} url", self.url, pattern=_URL, accepted="http:// or https://, without credentials")
            try:
                urlsplit(str(self.url)).port  # noqa: B018
            except ValueError as error:
                raise InvalidError(f"{where} url has a host or a port that is none", given=self.url) from error
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
        if self.max_per_s is not None:
            arguments.whole(f"{where} max_per_s", self.max_per_s, least=1)
        arguments.whole(f"{where} max_wait_s", self.max_wait_s, least=0)
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
        for warning in self.warnings():
            logger.warning("%s", warning)
        return schema

    def warnings(self) -> list[str]:
        """Credentials that are sent without encryption."""
        at = self.address()
        if not at.sends_secrets_in_clear:
            return []
        host = urlsplit(at.url).hostname or ""
        return clear_text_warning("sink http", self.conn_id or "", host, 'set "https" as the schema of the connection')

    def publish(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """Perform, part by part, what no entry has recorded yet."""
        return Publication(self, batch, effects).publish()

    def skip(self, batch: Batch, effects: EffectLedger) -> Receipt | None:
        """
        Give up the records of which nothing is recorded.

        Without claims they become *unknown*: a publisher may have called the endpoint and died before it recorded the calls.
        """
        return Publication(self, batch, effects).skip()

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """An endpoint keeps none: the ledger does."""
        return None

    def stats(self, parquet: Any) -> str:
        """None are needed; dates that a call cannot hold are refused here, before the decision."""
        keyed_rows.check_times(parquet)
        return ""

    def address(self) -> Address:
        """Where the calls go, with the secrets of the connection."""
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
            decimals = _decimals(batch.schema)
            values = [_shortest(row[name]) if name in decimals else row[name] for name in self.record_id]
            named = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
            return f"{batch.pipeline_uuid}-{batch.sink}-{sha256(named.encode())}"
        return f"{batch.pipeline_uuid}-{batch.sink}-{batch.version}-{batch.outcome[:16]}-{part}-{index}"


@lru_cache(maxsize=16)
def _decimals(schema: str) -> frozenset[str]:
    """The decimal columns of a batch's schema. Asked for every record, so it is parsed once."""
    kinds = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    return frozenset(name for name, kind in kinds.items() if isinstance(kind, str) and kind.startswith("decimal("))


def _shortest(decimal: str) -> str | int:
    """A decimal without zeros at its end: its column may be widened, and 5, 5.0 and 5.00 name one record."""
    return (
        decimal.rstrip("0").rstrip(".")
        if "." in decimal and decimal.rpartition(".")[2].strip("0")
        else int(decimal.partition(".")[0])
    )
