"""Decodes a binary column of messages with Spark, and marks bad messages. Imports pyspark, so only engines import this module."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from airflow_provider_streamsem import telemetry
from airflow_provider_streamsem.connectors import varints
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.columns.nested import anywhere, holds
from airflow_provider_streamsem.connectors.parsing import parsed as parsing
from airflow_provider_streamsem.connectors.parsing import protobuf_messages
from airflow_provider_streamsem.connectors.parsing.decoders import (
    SCHEMA_ID_BYTES,
    Avro,
    Debezium,
    Decoder,
    Json,
    Protobuf,
)
from airflow_provider_streamsem.connectors.parsing.registry import SchemaVersion, registry_of, versions_of, warnings
from airflow_provider_streamsem.connectors.pickling import pickle_by_value
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.extras import install_command

logger = telemetry.log_of(__name__)

_DECODED = "__streamsem_decoded_"
_MICROS = "yyyy-MM-dd'T'HH:mm:ss.SSSSSS"
_EVENT_OPTIONS = {
    "ignoreNullFields": "false", "timeZone": "UTC", "timestampFormat": f"{_MICROS}XXX", "timestampNTZFormat": _MICROS
}  # fmt: skip
"""With them, ``to_json`` keeps nulls and microseconds, and writes times in UTC."""


class Decoded:
    """
    A decoded column of messages.

    Columns are SQL where it is possible, because each call of pyspark that makes a column takes half a millisecond.

    :param record: returns a struct of the fields; null if the message is null
    :param fields: name → SQL
    :param bad: SQL of whether the message cannot be decoded
    :param reason: SQL of why it cannot be decoded, without values of the message; empty if it is not known
    """

    def __init__(
        self,
        frame: DataFrame,
        record: Callable[[], Column],
        fields: Mapping[str, str],
        bad: str,
        reason: str = "''",
    ) -> None:
        self.frame, self.record, self.fields, self.bad = frame, record, fields, bad
        self._reason = reason

    @property
    def columns(self) -> list[str]:
        """SQL of the fields, each under its name."""
        return parsing.under_names(self.fields)

    def why_bad(self, what: str) -> str:
        """Return SQL of why a ``what``, such as ``value``, cannot be decoded; null if it can be."""
        return f"CASE WHEN {self.bad} THEN concat_ws(': ', '{what} cannot be decoded', nullif({self._reason}, '')) END"


def decode(
    frame: DataFrame, column: str, decoder: Decoder, *, subjects: Sequence[str], keeps_data: bool = True
) -> Decoded:
    """
    Decode a binary column. A null message has null fields, and is not bad.

    :param subjects: requested from the schema registry, if the decoder has one and names no subject
    :param keeps_data: ``False``: the binary column, which may be left out, need not be sent to the Python workers and back
    """
    if isinstance(decoder, Json):
        return _json(frame, column, decoder, keeps_data=keeps_data)
    if isinstance(decoder, Protobuf):
        return _protobuf(frame, column, decoder)
    subjects = [decoder.subject] if decoder.subject is not None else [*subjects]
    if isinstance(decoder, Debezium):
        return _debezium(frame, column, decoder, subjects, keeps_data=keeps_data)
    return _avro(frame, column, decoder, subjects)


def _json(read: DataFrame, part: str, decoder: Json, *, keeps_data: bool) -> Decoded:
    columns = parsing.struct(decoder.schema, "json")
    data = F.col(part)
    content = data.cast("string")
    if decoder.has_schema_id:
        after_id = F.expr(f"CAST(substring({part}, {SCHEMA_ID_BYTES + 1}) AS STRING)")
        has_id = F.expr(f"substring({part}, 1, 1) = X'00'")
        content = F.when(has_id, after_id).when(data.isNotNull(), F.lit(""))  # the empty text is no record
    records = parsing.records_of_json(read.sparkSession, columns, decoder.options)
    return _parsed(read, part, records, content, keeps_data=keeps_data)


def _parsed(
    read: DataFrame, part: str, records: parsing.Records, content: Column, *, keeps_data: bool,
    refused: Column | None = None, drop: Sequence[str] = (),
) -> Decoded:  # fmt: skip
    """``content`` is the text of each message, ``refused`` the reason why there is none, and ``drop`` the columns of which they are made."""
    column, text, is_message, why = (f"{_DECODED}{part}{name}" for name in ("", "_text", "_is_message", "_refused"))
    frame = read.withColumns({text: content, is_message: F.col(part).isNotNull()})
    frame = (frame if refused is None else frame.withColumn(why, refused)).drop(*drop)
    parsed = records.parsed(frame if keeps_data else frame.drop(part), text, into=column)

    def record() -> Column:
        return F.when(F.col(is_message), F.struct(*map(F.expr, parsed.columns)))

    bad, reason = parsed.bad, parsed.reason
    if refused is not None:
        bad, reason = f"({bad} OR {why} IS NOT NULL)", f"coalesce({why}, {reason})"
    return Decoded(parsed.frame, record, parsed.values, bad, reason=reason)


def _debezium(read: DataFrame, part: str, decoder: Debezium, subjects: Sequence[str], *, keeps_data: bool) -> Decoded:
    """Events in Avro are decoded by Spark with the schema of the writer, and written as JSON with the id of the schema."""
    registry = registry_of(decoder)
    if registry is None:
        records = parsing.records_of_debezium(decoder, {})
        return _parsed(read, part, records, F.col(part).cast("string"), keeps_data=keeps_data)
    for warning in warnings(decoder):
        logger.warning(warning)
    word, versions = secrets.token_bytes(16), versions_of(registry, [*subjects])
    incomplete = {version.id: version.incomplete for version in versions}
    complete = {version.id: version for version in versions if version.incomplete is None}
    text, refused, columns = F.lit(None).cast("string"), _refused(part, versions, incomplete), []
    for number, version in complete.items():
        column = f"{_DECODED}{part}_{number}"
        outer = _from_avro(_payload(part, word), version.schema, version.schema)
        read = read.withColumn(column, F.when(_is_of(part, version), outer))
        not_whole = _not_whole(read, column, word, F.lit(f"its schema {number}"))
        event = F.concat(
            F.lit(f'{{"schema":{number},"payload":'), F.to_json(F.col(column)["record"], _EVENT_OPTIONS), F.lit("}")
        )
        text = F.when(_is_of(part, version) & not_whole.isNull(), event).otherwise(text)
        refused = F.when(_is_of(part, version), not_whole).otherwise(refused)
        columns.append(column)
    records = parsing.records_of_debezium(decoder, {number: version.schema for number, version in complete.items()})
    refused = F.when(F.col(part).isNotNull(), refused)
    return _parsed(read, part, records, text, keeps_data=keeps_data, refused=refused, drop=columns)


def _protobuf(read: DataFrame, part: str, decoder: Protobuf) -> Decoded:
    kind, descriptors = _message_type(decoder)
    column, reason = f"{_DECODED}{part}", f"{_DECODED}{part}_reason"
    row = from_arrow_type(protobuf_messages.row_type(kind), prefer_timestamp_ntz=False)
    read, lists = parsing.without_null_lists(read)
    schema = StructType([*read.schema.fields, StructField(column, row), StructField(reason, StringType())])
    pickle_by_value(protobuf_messages, varints)
    decode_batches = partial(
        protobuf_messages.with_rows, column=part, descriptors=descriptors, message=decoder.message, has_schema_id=decoder.has_schema_id
    )  # fmt: skip
    decoded = parsing.with_null_lists(read.mapInArrow(decode_batches, schema), lists)
    bad = f"{column}_bad"
    frame = decoded.withColumn(bad, F.col(reason).isNotNull())
    return Decoded(frame, partial(F.col, column), _fields(column, row.names), bad, reason=quoted(reason))


def _message_type(decoder: Protobuf) -> tuple[Any, bytes]:
    if find_spec("google.protobuf") is None:
        raise InvalidError("the library protobuf is not installed; nothing became visible").advising(
            f"run `{install_command(['protobuf'])}`, then run again."
        )
    try:
        descriptors = Path(decoder.descriptors).read_bytes()
        kind = protobuf_messages.descriptor_of(descriptors, decoder.message)
        protobuf_messages.row_type(kind)
    except (OSError, protobuf_messages.DescriptorsError) as error:
        summary = "the descriptor file of a Protobuf decoder cannot be used; nothing became visible"
        raise InvalidError(
            summary, descriptors=decoder.descriptors, message=decoder.message, reason=str(error)
        ).advising(
            "correct `descriptors` or `message`, or write the file with `protoc --include_imports --descriptor_set_out`."
        ) from None
    return kind, descriptors


def _avro(read: DataFrame, part: str, decoder: Avro, subjects: Sequence[str]) -> Decoded:
    """
    Each message is decoded as the first field of an outer record, whose second field is a random word. Avro encodes fields one after the other without
    separators, so the encoded outer record is the message followed by the word. The word is decoded correctly only if the message is exactly one record.
    """
    column, word = f"{_DECODED}{part}", secrets.token_bytes(16)
    names = [f["name"] for f in json.loads(decoder.schema)["fields"]]
    data = F.col(part)
    registry = registry_of(decoder)
    if registry is None:
        outer = _from_avro(F.concat(data, F.lit(word)), decoder.schema, decoder.schema)
        refused, of_schema = F.lit(None).cast("string"), F.lit("the schema")
    else:
        for warning in warnings(decoder):
            logger.warning(warning)
        versions = versions_of(registry, [*subjects])
        outer, refused = _by_schema_id(part, versions, decoder.schema, word)
        of_schema = F.format_string("its schema %s", _schema_id(part))
    wrapped = read.withColumn(column, outer)
    not_whole = _not_whole(wrapped, column, word, of_schema)
    bad = data.isNotNull() & not_whole.isNotNull()
    marked = wrapped.withColumn(f"{column}_bad", bad)
    marked = marked.withColumn(f"{column}_reason", F.when(bad, F.coalesce(refused, not_whole)))
    frame = marked.withColumn(column, F.col(column)["record"])
    record = partial(F.col, column)
    return Decoded(frame, record, _fields(column, names), f"{column}_bad", reason=quoted(f"{column}_reason"))


def _not_whole(frame: DataFrame, column: str, word: bytes, of_schema: Column) -> Column:
    """Return why a message, whose outer record is in ``column``, is not exactly one record; null if it is one."""
    record, is_alone = F.col(column)["record"], F.col(column)["word"] == F.lit(word)
    # Avro strings must be UTF-8, but Spark's reader does not check it.
    kind = frame.schema[column].dataType
    is_text = holds(kind, StringType)
    is_not_utf8 = (
        anywhere(F.col(column), kind, StringType, lambda text: ~F.is_valid_utf8(text)) if is_text else F.lit(False)
    )
    is_whole = F.coalesce(record.isNotNull() & is_alone, F.lit(False))
    return (
        F.when(is_whole & F.coalesce(is_not_utf8, F.lit(False)), F.lit("a string in it is not UTF-8"))
        .when(~is_whole & record.isNotNull(), F.concat(F.lit("it has more bytes than one record of "), of_schema))
        .when(~is_whole, F.concat(F.lit("it is truncated, or not a record of "), of_schema))
    )


def _fields(column: str, names: Sequence[str]) -> dict[str, str]:
    return {name: f"{quoted(column)}.{quoted(name)}" for name in names}


def _by_schema_id(part: str, versions: Sequence[SchemaVersion], reader: str, word: bytes) -> tuple[Column, Column]:
    """Return the outer record of a message with a schema id, and why its schema cannot be read; see :func:`_avro`."""
    outer = _from_avro(F.lit(None).cast("binary"), reader, reader)
    unreadable = {version.id: version.unreadable(reader) for version in versions}
    for version in versions:
        if unreadable[version.id] is None:
            read = _from_avro(_payload(part, word), version.schema, reader)
            outer = F.when(_is_of(part, version), read).otherwise(outer)
    return outer, _refused(part, versions, unreadable)


def _payload(part: str, word: bytes) -> Column:
    return F.concat(F.expr(f"substring({part}, {SCHEMA_ID_BYTES + 1})"), F.lit(word))


def _is_of(part: str, version: SchemaVersion) -> Column:
    return F.expr(f"substring({part}, 1, {SCHEMA_ID_BYTES})") == F.lit(b"\0" + version.id.to_bytes(4, "big"))


def _refused(part: str, versions: Sequence[SchemaVersion], unreadable: Mapping[int, str | None]) -> Column:
    """Return why the schema of a message cannot be read; null if it can be. ``unreadable``: schema id → why it cannot be."""
    has_id = F.expr(f"octet_length({part}) >= {SCHEMA_ID_BYTES} AND substring({part}, 1, 1) = X'00'")
    unknown = F.format_string("no version of the subject has its schema %s", _schema_id(part))
    refused = F.when(~has_id, F.lit("it does not start with the zero byte and the id of a schema")).otherwise(unknown)
    for version in versions:
        reason = unreadable[version.id]
        if reason is not None:
            logger.warning("all records with this schema are quarantined: %s", reason)
        refused = F.when(_is_of(part, version), F.lit(reason).cast("string")).otherwise(refused)
    return refused


def _schema_id(part: str) -> Column:
    return F.expr(f"conv(hex(substring({part}, 2, {SCHEMA_ID_BYTES - 1})), 16, 10)")


def _from_avro(data: Column, writer: str, reader: str) -> Column:
    from pyspark.sql.avro.functions import from_avro

    options = {"mode": "PERMISSIVE", "avroSchema": _outer(reader), "datetimeRebaseMode": "CORRECTED"}
    return from_avro(data, _outer(writer), options)


def _outer(schema: str) -> str:
    word = {"name": "word", "type": {"type": "fixed", "name": "StreamsemWord", "size": 16}}
    return json.dumps(
        {"type": "record", "name": "StreamsemOuter", "fields": [{"name": "record", "type": json.loads(schema)}, word]}
    )
