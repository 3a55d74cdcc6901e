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
        if self.registry is not None:
            arguments.text(
                "avro: registry", self.registry, pattern=r"https?://[^@\s]+", accepted="a URL without credentials in it"
            )
        if self.registry_conn_id is not None:
            arguments.text("avro: registry_conn_id", self.registry_conn_id)
            if self.registry is not None:
                raise InvalidError("avro: registry and registry_conn_id exclude each other", given=self.registry)
        if self.subject is not None:
            arguments.text("avro: subject", self.subject)
            if not self.has_registry:
                raise InvalidError(
                    "avro: a subject has no effect without registry or registry_conn_id", given=self.subject
                )

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


Decoder: TypeAlias = Json | Avro | Protobuf
_DECODERS: dict[str, type[Json] | type[Avro] | type[Protobuf]] = {"json": Json, "avro": Avro, "protobuf": Protobuf}


def decoder(where: str, given: object) -> Decoder | None:
    """Return a decoder from a decoder object, or from a TOML table with a ``type``."""
    if given is None or isinstance(given, (Json, Avro, Protobuf)):
        return given
    if not isinstance(given, Mapping):
        raise InvalidError(
            f"{where} must be a Json, Avro or Protobuf object", given=type(given).__name__, accepted=sorted(_DECODERS)
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
    """Return the :func:`decoder` of a source without topics: an :class:`Avro` with a registry must name a subject."""
    found = decoder(where, given)
    if isinstance(found, Avro) and found.has_registry and found.subject is None:
        raise InvalidError(f"{where}: an Avro decoder with a registry needs the subject of this source").advising(
            "set `subject` of the Avro decoder to the subject of the schema registry."
        )
    return found


def spark_packages(*decoders: Decoder | None) -> tuple[str, ...]:
    """Return the names of the Spark packages that the decoders need."""
    return ("avro",) if any(isinstance(part, Avro) for part in decoders) else ()


def without_registry(given: Decoder | None) -> Decoder | None:
    """Return a decoder with the same columns that needs no schema registry."""
    return (
        dataclasses.replace(given, registry=None, registry_conn_id=None, subject=None)
        if isinstance(given, Avro)
        else given
    )


def to_json(given: Decoder | None) -> Any:
    """Return a decoder as a TOML table; ``None`` for ``None``."""
    if given is None:
        return None
    fields = {name: getattr(given, name) for name in given.__dataclass_fields__}
    return {"type": given.type, **{name: value for name, value in fields.items() if value not in (None, {}, False)}}
