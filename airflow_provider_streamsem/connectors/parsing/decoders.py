"""
Decoders: the settings with which the keys and values of messages are parsed into columns. Does not import Spark.

A message that cannot be parsed is quarantined.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError

_DECIMAL_MODES = ("precise", "string", "double")
_NEW_COLUMNS = ("ignore", "quarantine")
_TIME_MODES = (
    "adaptive", "adaptive_time_microseconds", "connect", "isostring", "microseconds", "nanoseconds",
)  # fmt: skip
SCHEMA_ID_BYTES = 5
"""Length of the zero byte and the schema id with which a message of a schema registry starts."""
_MESSAGE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_JSON_OPTIONS = (
    "allownumericleadingzeros",
    "dateformat",
    "locale",
    "timestampformat",
    "timestampntzformat",
    "timezone",
)


@dataclass(frozen=True, slots=True)
class Json:
    """
    Decodes one JSON object in UTF-8.

    A record is bad if text follows the object, or if a column cannot hold a value exactly (``docs/connectors/files-source.md``).

    :param schema: columns as Spark DDL, such as ``"id long, at timestamp"``. Fields without a column are ignored, and missing fields are null
    :param options: options of Spark's JSON reader: ``allowNumericLeadingZeros``, ``dateFormat``, ``locale``, ``timestampFormat``, ``timestampNTZFormat``,
        ``timeZone``
    :param has_schema_id: whether each message starts with a zero byte and the id of a schema in four bytes, as serializers of a schema registry write it. The
        five bytes are skipped, and no schema is requested. A message without the zero byte is bad
    :raises InvalidError: an argument is not valid
    """

    type: ClassVar[str] = "json"
    schema: str
    options: Mapping[str, str] = field(default_factory=dict)
    has_schema_id: bool = False

    def __post_init__(self) -> None:
        arguments.text("json: schema", self.schema, accepted='Spark DDL, such as "id long, at timestamp"')
        options = arguments.options("json: options", self.options)
        arguments.known_keys("json: options", {name.lower(): value for name, value in options.items()}, _JSON_OPTIONS)
        object.__setattr__(self, "options", options)
        arguments.flag("json: has_schema_id", self.has_schema_id)


@dataclass(frozen=True, slots=True)
class Avro:
    """
    Decodes one Avro record in binary encoding. Bytes after the record make it bad. Requires Spark's Avro package.

    :param schema: the Avro schema of the record as JSON text. It defines the columns. Without a registry it is also the writer's schema
    :param registry: URL of a schema registry, without credentials. Each message must then start with a zero byte and the id of the writer's schema in four
        bytes. Records of every version of the subject are read with ``schema``
    :param registry_conn_id: in place of ``registry``, an Airflow connection of type ``http`` with the URL, login and password of the schema registry
    :param subject: the subject in the registry. Default for Kafka: ``<topic>-value``, and ``<topic>-key`` for keys. Other sources have no default
    :raises InvalidError: an argument is not valid
    """

    type: ClassVar[str] = "avro"
    schema: str
    registry: str | None = None
    registry_conn_id: str | None = None
    subject: str | None = None

    def __post_init__(self) -> None:
        arguments.text("avro: schema", self.schema, accepted="an Avro schema of a record as JSON text")
        try:
            parsed = json.loads(self.schema)
        except ValueError:
            parsed = None
        if not isinstance(parsed, dict) or parsed.get("type") != "record":
            raise InvalidError("avro: schema must be the JSON text of a record's schema", given=self.schema[:80])
        _check_registry(self)

    @property
    def has_registry(self) -> bool:
        """Whether the writers' schemas are in a schema registry."""
        return self.registry is not None or self.registry_conn_id is not None


@dataclass(frozen=True, slots=True)
class Protobuf:
    """
    Decodes one Protobuf message. Requires the extra ``protobuf``, and the library protobuf on the executors.

    :param message: full name of the message type, such as ``shop.Order``. Its fields define the columns
    :param descriptors: path of a descriptor file, which ``protoc --include_imports --descriptor_set_out=PATH`` writes. It is read where the Spark driver runs
    :param has_schema_id: whether each message starts with a zero byte, the id of a schema in four bytes and the index of the message type, as serializers of a
        schema registry write it. No schema is requested. A message with another index is bad
    :raises InvalidError: an argument is not valid
    """

    type: ClassVar[str] = "protobuf"
    message: str
    descriptors: str
    has_schema_id: bool = False

    def __post_init__(self) -> None:
        arguments.text("protobuf: message", self.message, pattern=_MESSAGE, accepted="a full name, such as shop.Order")
        arguments.text("protobuf: descriptors", self.descriptors, accepted="the path of a descriptor file")
        arguments.flag("protobuf: has_schema_id", self.has_schema_id)


@dataclass(frozen=True, slots=True)
class Debezium:
    """
    Decodes one change event of Debezium: JSON, with or without the schema in each message, or Avro with a schema registry.

    The columns are those of the row, and then ``debezium_op string`` (``c``, ``r``, ``u``, ``d`` or ``t``), ``debezium_sequence decimal(38,0)``,
    ``debezium_timestamp timestamp``, ``debezium_snapshot``, ``debezium_transaction``, ``debezium_database``, ``debezium_schema``, ``debezium_table string`` and
    ``debezium_unchanged array<string>``. The row is ``after``, and ``before`` for a delete. ``debezium_sequence`` is greater for a later change of a row, and
    null for other connectors than those of Postgres, MySQL and, with ``provide.transaction.metadata=true``, MariaDB. ``debezium_unchanged`` lists the columns
    that an update did not send, which are null in the DataFrame: ``Changes(unchanged_columns="debezium_unchanged")`` keeps their values in the table. A message
    that is not an event is quarantined.

    :param schema: columns of the row as Spark DDL, such as ``"id long, balance decimal(10,2), at timestamp"``. Other columns: see ``new_columns``. A time
        without a time zone can be read as ``timestamp_ntz``, or as ``timestamp`` in UTC
    :param registry: URL of a schema registry, without credentials. With it, the messages are Avro; without it, JSON
    :param registry_conn_id: in place of ``registry``, an Airflow connection of type ``http`` with the URL, login and password of the schema registry
    :param subject: the subject in the registry. Default for Kafka: ``<topic>-value``. Other sources have no default
    :param decimal_handling_mode: the setting ``decimal.handling.mode`` of the connector: ``precise``, ``string`` or ``double``. Used for JSON without schemas.
        With ``precise``, a decimal without a schema is quarantined, because its scale is unknown
    :param time_precision_mode: the setting ``time.precision.mode`` of the connector. Used for JSON without schemas. With ``adaptive``
        and ``adaptive_time_microseconds``, a numeric timestamp without a schema is quarantined, because its unit is unknown
    :param unavailable_value: the setting ``unavailable.value.placeholder`` of the connector
    :param new_columns: what happens if a row has a column that ``schema`` does not name: ``ignore``, or ``quarantine`` the event, so that a column that is
        added to the source does not go unnoticed. A delete is decoded in both cases
    :raises InvalidError: an argument is not valid
    """

    type: ClassVar[str] = "debezium"
    schema: str
    registry: str | None = None
    registry_conn_id: str | None = None
    subject: str | None = None
    decimal_handling_mode: str = "precise"
    time_precision_mode: str = "adaptive"
    unavailable_value: str = "__debezium_unavailable_value"
    new_columns: str = "ignore"

    def __post_init__(self) -> None:
        arguments.text("debezium: schema", self.schema, accepted='Spark DDL, such as "id long, at timestamp"')
        _check_registry(self)
        arguments.choice("debezium: decimal_handling_mode", self.decimal_handling_mode, _DECIMAL_MODES)
        arguments.choice("debezium: time_precision_mode", self.time_precision_mode, _TIME_MODES)
        arguments.text("debezium: unavailable_value", self.unavailable_value)
        arguments.choice("debezium: new_columns", self.new_columns, _NEW_COLUMNS)

    @property
    def has_registry(self) -> bool:
        """Whether the messages are Avro, and the schemas in a schema registry."""
        return self.registry is not None or self.registry_conn_id is not None


def _check_registry(given: Avro | Debezium) -> None:
    where = given.type
    if given.registry is not None:
        arguments.text(
            f"{where}: registry",
            given.registry,
            pattern=r"https?://[^@\s]+",
            accepted="a URL without credentials in it",
        )
    if given.registry_conn_id is not None:
        arguments.text(f"{where}: registry_conn_id", given.registry_conn_id)
        if given.registry is not None:
            raise InvalidError(f"{where}: registry and registry_conn_id exclude each other", given=given.registry)
    if given.subject is not None:
        arguments.text(f"{where}: subject", given.subject)
        if not given.has_registry:
            raise InvalidError(
                f"{where}: a subject has no effect without registry or registry_conn_id", given=given.subject
            )


Decoder: TypeAlias = Json | Avro | Debezium | Protobuf
_DECODERS: dict[str, type[Json] | type[Avro] | type[Debezium] | type[Protobuf]] = {
    kind.type: kind for kind in (Json, Avro, Debezium, Protobuf)
}


def decoder(where: str, given: object) -> Decoder | None:
    """Return a decoder from a decoder object, or from a TOML table with a ``type``."""
    if given is None or isinstance(given, (Json, Avro, Debezium, Protobuf)):
        return given
    if not isinstance(given, Mapping):
        raise InvalidError(
            f"{where} must be a Json, Avro, Debezium or Protobuf object",
            given=type(given).__name__,
            accepted=sorted(_DECODERS),
        )
    decoder_type = _DECODERS[arguments.choice(f"{where}: type", given.get("type"), _DECODERS)]
    rest = {name: value for name, value in given.items() if name != "type"}
    arguments.known_keys(where, rest, list(decoder_type.__dataclass_fields__))
    required = [field.name for field in dataclasses.fields(decoder_type) if _is_required(field)]
    if missing := [name for name in required if name not in rest]:
        raise InvalidError(f"{where} lacks required arguments", missing=missing)
    return decoder_type(**rest)


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def decoder_of_data(where: str, given: object) -> Decoder | None:
    """Return the :func:`decoder` of a source without topics: one with a registry must name a subject."""
    found = decoder(where, given)
    if isinstance(found, (Avro, Debezium)) and found.has_registry and found.subject is None:
        raise InvalidError(f"{where}: a decoder with a registry needs the subject of this source").advising(
            "set `subject` of the decoder to the subject of the schema registry."
        )
    return found


def spark_packages(*decoders: Decoder | None) -> tuple[str, ...]:
    """Return the names of the Spark packages that the decoders need."""
    is_avro = (isinstance(part, Avro) or (isinstance(part, Debezium) and part.has_registry) for part in decoders)
    return ("avro",) if any(is_avro) else ()


def without_registry(given: Decoder | None) -> Decoder | None:
    """Return a decoder with the same columns that needs no schema registry."""
    return (
        dataclasses.replace(given, registry=None, registry_conn_id=None, subject=None)
        if isinstance(given, (Avro, Debezium))
        else given
    )


def to_json(given: Decoder | None) -> Any:
    """Return a decoder as a TOML table; ``None`` for ``None``."""
    if given is None:
        return None
    fields = {name: getattr(given, name) for name in given.__dataclass_fields__}
    return {"type": given.type, **{name: value for name, value in fields.items() if value not in (None, {}, False)}}
