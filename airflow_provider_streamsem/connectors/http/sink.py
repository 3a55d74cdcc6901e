"""
The HTTP sink: calls an endpoint for the rows of a batch, in chunks. The commit log records the result of each chunk (PROTOCOL.md, P4 and P5).

The caller alone cannot make an HTTP call exactly once, because it may die after the call and before it records the result. Another process can then repeat the
call (at least once, perhaps a duplicate) or not repeat it (at most once, perhaps a loss). A repeated call has no effect only if the endpoint deduplicates calls
by key, or if its operation is idempotent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar
from urllib.parse import urlsplit

from airflow_provider_streamsem import arguments, telemetry
from airflow_provider_streamsem.connections import clear_text_warning, connection
from airflow_provider_streamsem.connectors.http.calls import Publisher
from airflow_provider_streamsem.connectors.http.endpoint import NOT_PERFORMED_TEXT, Address, address
from airflow_provider_streamsem.connectors.http.operations import OPERATIONS
from airflow_provider_streamsem.connectors.json_rows.rows import check_types
from airflow_provider_streamsem.connectors.sink import SENT_IN_ORDER, SinkCommit, SinkMarker
from airflow_provider_streamsem.connectors.staged_parquet import keyed_rows
from airflow_provider_streamsem.connectors.staged_parquet.sink import StagedSink
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.expectations import Expect, set_expectations
from airflow_provider_streamsem.protocol.codec import sha256
from airflow_provider_streamsem.protocol.entries import Json, Receipt
from airflow_provider_streamsem.stores.contract import normalised
from airflow_provider_streamsem.stores.dataset import open_dataset

logger = telemetry.log_of(__name__)

_URL = r"https?://[^\s@#]+"
_NAME = r"[A-Za-z0-9-]{1,64}"
_NONE_LEFT_OUT = (
    "the sink repeats the calls of a chunk until the log records the result of each call, so no record is left out"
)
_REASONS: dict[str, tuple[str, ...]] = {
    "at_least_once": (
        _NONE_LEFT_OUT,
        "a crash may repeat the calls of a chunk. If the endpoint performs each {header} once, idempotent=True makes this effectively once; "
        'delivery="at_most_once" repeats no call, and may lose records',
    ),
    "effectively_once": (
        _NONE_LEFT_OUT,
        "every try of a call carries the same {header}; the endpoint promises to perform each key once (idempotent=True), which the sink cannot check",
    ),
    "at_most_once": (
        "the sink claims each chunk of the rows in the log before its first call, and no call is performed twice. The sink sends a call again only if the "
        f"endpoint says that it did not perform it ({NOT_PERFORMED_TEXT}), or if the call could not be sent. If the result of a "
        "call is unknown after a crash or an unclear response, the receipts count its records as unknown. "
        'delivery="at_least_once" would lose no record, but may repeat some',
    ),
}


@dataclass(frozen=True, slots=True)
class HttpSink(StagedSink):
    """
    Sends each row, or group of rows, as the JSON body of an HTTP call.

    Each call has an idempotency key, which is the same at every try. The sink refuses reprocessing, because a call cannot be undone.

    Calls are sequential. If the endpoint limits the rate, the sink waits as long as ``Retry-After`` requests, and then calls at a lower rate.

    :param staging: location in which rows are staged as Parquet before their calls: an absolute path, ``file:///path`` or ``s3://bucket/prefix``
    :param url: URL of the endpoint, without secrets. Exactly one of ``url`` and ``conn_id`` must be given
    :param conn_id: an Airflow connection of type ``http``: host, login and password, headers in its extra
    :param endpoint: path below the host of the connection; only with ``conn_id``
    :param method: ``POST``, ``PUT`` or ``PATCH``
    :param delivery: ``at_least_once``: a call with an unknown result is repeated. ``at_most_once``: such a call is not repeated, and its records count as
        *unknown*
    :param operation: what the endpoint does with a record: a key of :data:`airflow_provider_streamsem.connectors.http.operations.OPERATIONS`. With an
        idempotent operation, ``at_least_once`` becomes ``effectively_once``
    :param idempotent: whether the endpoint guarantees to perform calls with the same key once. If so, ``at_least_once`` becomes ``effectively_once``
    :param key_header: name of the header with the idempotency key
    :param record_id: columns that identify a record. Default: the position of a record in the version identifies it
    :param records_per_call: maximum number of records in one call, 1 or more. With 1 the body is a JSON object, otherwise an array of objects
    :param chunk_rows: number of rows whose results are recorded together, 1 or more. After a crash up to this many rows are repeated or become *unknown*. Must
        not change while the log is in use
    :param on_refusal: what happens to a record that the endpoint refuses. ``fail`` (default; not with ``at_most_once``): the run fails, and the pipeline
        stops until the endpoint accepts the record. ``record`` (default with ``at_most_once``): the record is counted in the receipts and not sent again
    :param timeout_s: timeout of the connection, and then of the response, in seconds, 1 or more
    :param max_per_s: maximum number of calls per second, 1 or more. Default: as many as the endpoint answers
    :param max_wait_s: maximum total wait for one deferred call, in seconds, 0 or more. If the endpoint requests a longer wait, the run records its progress and
        fails. A retry continues it
    :param sequence_by: columns by which the calls of a batch are ordered, ascending; a null comes first. Default: the order of the source, if the transform
        keeps it
    :param expect: name of a rule → :class:`Expect`, for the rows that the transform returns
    :raises InvalidError: an argument is not valid, or two arguments cannot be combined
    """

    is_sequenced: ClassVar[bool] = True
    can_remove_rows: ClassVar[bool] = False
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
    chunk_rows: int = 100
    on_refusal: str | None = None
    timeout_s: int = 30
    max_per_s: int | None = None
    max_wait_s: int = 300
    sequence_by: Sequence[str] = ()
    expect: Mapping[str, Expect] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = "sink http:"
        set_expectations(where, self)
        open_dataset(arguments.text(f"{where} staging", self.staging))
        arguments.exactly_one(where, url=self.url, conn_id=self.conn_id)
        if self.url is not None:
            if "@" in str(self.url):  # The error does not quote the URL, which may contain a password.
                raise InvalidError(f"{where} url must not contain credentials").advising(
                    "store the credentials in a connection, and give its conn_id."
                )
            arguments.text(f"{where} url", self.url, pattern=_URL, accepted="http:// or https://, without credentials")
            try:
                urlsplit(str(self.url)).port  # noqa: B018
            except ValueError as error:
                raise InvalidError(
                    f"{where} url has an invalid host or port", given=arguments.redacted(str(self.url))
                ) from error
        else:
            arguments.text(f"{where} conn_id", self.conn_id)
        arguments.text(f"{where} endpoint", self.endpoint, pattern=r"[^\s#]*", accepted="a path without spaces")
        if self.url is not None and self.endpoint:
            raise InvalidError(
                f"{where} endpoint needs conn_id; a url must contain the whole address",
                given=arguments.redacted(self.endpoint),
            )
        arguments.choice(f"{where} method", self.method, ("POST", "PUT", "PATCH"))
        arguments.text(f"{where} key_header", self.key_header, pattern=_NAME, accepted=_NAME)
        for name in ("record_id", "sequence_by"):
            object.__setattr__(self, name, arguments.text_list(f"{where} {name}", getattr(self, name)))
        arguments.integer(f"{where} records_per_call", self.records_per_call, least=1)
        arguments.integer(f"{where} chunk_rows", self.chunk_rows, least=1)
        arguments.integer(f"{where} timeout_s", self.timeout_s, least=1)
        if self.max_per_s is not None:
            arguments.integer(f"{where} max_per_s", self.max_per_s, least=1)
        arguments.integer(f"{where} max_wait_s", self.max_wait_s, least=0)
        if self.record_id and self.records_per_call != 1:
            raise InvalidError(f"{where} record_id identifies one record, so records_per_call must be 1")
        self._check_delivery(where)

    def _check_delivery(self, where: str) -> None:
        arguments.flag(f"{where} idempotent", self.idempotent)
        arguments.choice(f"{where} operation", self.operation, tuple(OPERATIONS))
        is_harmless = self.idempotent or OPERATIONS[self.operation].idempotent
        accepted = ("at_least_once", "at_most_once", *(("effectively_once",) if is_harmless else ()))
        arguments.choice(f"{where} delivery", self.delivery, accepted)
        claims = self.delivery == "at_most_once"
        if claims and self.idempotent:
            raise InvalidError(
                f"{where} idempotent has no effect with at_most_once, which repeats no call", accepted="at_least_once"
            )
        if is_harmless and not claims:
            object.__setattr__(self, "delivery", "effectively_once")
        if self.on_refusal is None:
            object.__setattr__(self, "on_refusal", "record" if claims else "fail")
        # With claims, a refused record cannot be sent again, so the run must not stop until it is accepted.
        arguments.choice(f"{where} on_refusal", self.on_refusal, ("record",) if claims else ("fail", "record"))

    @property
    def location(self) -> str:
        return self.staging

    @property
    def reasons(self) -> tuple[str, ...]:
        """The reasons for the delivery guarantee: what happens to a record if the process dies after its call and before the result is recorded."""
        reasons = tuple(reason.format(header=self.key_header) for reason in _REASONS[self.delivery])
        operation = OPERATIONS[self.operation]
        if operation.idempotent and not self.idempotent and self.delivery == "effectively_once":
            reasons = (
                _NONE_LEFT_OUT,
                f"a repeated call changes nothing, as the endpoint promises ({self.operation}): {operation.why}",
            )
        elif self.delivery == "at_least_once":
            reasons += (f"a repeated `{self.operation}` is not idempotent: {operation.why}. Use {operation.instead}",)
        if self.record_id and self.idempotent:
            columns = ", ".join(self.record_id)
            reasons += (
                f"records with equal {columns} have the same key: the endpoint does not perform a later one with other values",
            )
        if self.on_refusal == "record":
            reasons += ("records that the endpoint refuses are counted in the receipts and left out",)
        by = ", ".join(self.sequence_by)
        in_order = SENT_IN_ORDER.format(unless=", unless sequence_by orders them")
        return (*reasons, f"the rows of a batch are sent in ascending order of {by}" if by else in_order)

    def immutable_config(self) -> Json:
        """Return the settings that determine chunks, calls and keys. They must not change, because another process may continue to publish a version."""
        return {
            "type": "http",
            "staging": normalised(self.staging),
            "claims": self.delivery == "at_most_once",
            "chunk_rows": self.chunk_rows,
            "records_per_call": self.records_per_call,
            "key_header": self.key_header,
            "record_id": list(self.record_id),
        }

    def resolve_schema(self, schema: str) -> str:
        """Also check that the columns of ``record_id`` exist, and that the connection is valid (``InvalidError``)."""
        names = check_types(schema)
        missing = sorted({*self.record_id} - {*names}) if names else []
        if missing:
            raise DataError("columns of record_id are missing", missing=missing, found=names)
        for warning in self.warnings():
            logger.warning("%s", warning)
        return schema

    def warnings(self) -> list[str]:
        address = self.address()
        if not address.sends_secrets_in_clear:
            return []
        host = urlsplit(address.url).hostname or ""
        return clear_text_warning("sink http", self.conn_id or "", host, 'set "https" as the schema of the connection')

    def publish(self, batch: SinkCommit) -> Receipt | None:
        """Make the calls whose result no publisher has recorded, chunk by chunk. See :meth:`Publisher.publish`."""
        return Publisher(self, batch).publish()

    def skip(self, batch: SinkCommit) -> Receipt | None:
        """With ``at_least_once``, records become *unknown*: a publisher may have called the endpoint and died before it recorded the result."""
        return Publisher(self, batch).skip()

    def marker(self, pipeline_uuid: str, sink: str) -> SinkMarker | None:
        """Return ``None``. An endpoint stores no marker. The log records the progress."""
        return None

    def copies_of_erased(self) -> tuple[str, ...]:
        return ("the service that received the rows: delete them there",)

    def stats(self, parquet: Any) -> str:
        """Return no statistics. Refuse dates and times outside the years 1 to 9999."""
        keyed_rows.check_times(parquet)
        return ""

    def address(self) -> Address:
        """
        Return the address of the endpoint, with the secrets of the connection.

        :raises InvalidError: the connection is not valid, or its headers contain ``key_header``
        """
        if self.url is not None:
            return Address(self.url)
        result = address(connection(self.conn_id or ""), self.endpoint)
        if self.key_header.lower() in {name.lower() for name in result.headers}:
            raise InvalidError(
                "the connection sets the header of the idempotency key; no call was made",
                conn_id=self.conn_id,
                header=self.key_header,
            ).advising(
                "remove the header from the extra of the connection, or set another `key_header` of the sink; then run again."
            )
        return result

    def key(self, batch: SinkCommit, chunk: int, index: int, row: Json) -> str:
        """
        Return the idempotency key of the call that begins with record ``index`` of a chunk.

        The key is the same at every try. Two calls share a key only if their records have equal ``record_id`` columns.
        """
        if self.record_id and all(row[name] is not None for name in self.record_id):
            decimals = _decimals(batch.schema)
            values = [_without_trailing_zeros(row[name]) if name in decimals else row[name] for name in self.record_id]
            identity = json.dumps(values, ensure_ascii=False, separators=(",", ":"))
            return f"{batch.pipeline_uuid}-{batch.sink}-{sha256(identity.encode())}"
        return f"{batch.pipeline_uuid}-{batch.sink}-{batch.version}-{batch.outcome[:16]}-{chunk}-{index}"


@lru_cache(maxsize=16)
def _decimals(schema: str) -> frozenset[str]:
    kinds = {field["name"]: field["type"] for field in json.loads(schema)["fields"]}
    return frozenset(name for name, kind in kinds.items() if isinstance(kind, str) and kind.startswith("decimal("))


def _without_trailing_zeros(decimal: str) -> str | int:
    """Return a decimal without trailing zeros. After a column was widened, 5 may be 5.0 or 5.00, and all of them must identify the same record."""
    whole, _, fraction = decimal.partition(".")
    return decimal.rstrip("0") if fraction.strip("0") else int(whole)
