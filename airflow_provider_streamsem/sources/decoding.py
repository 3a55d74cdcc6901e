"""How keys and values of a message become columns: specs only, without Spark. What does not fit is quarantined with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError

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
    One JSON object in UTF-8. Anything after it, or a value that its column cannot hold exactly (``docs/sources/files.md``), makes the record bad.

    :param schema: Spark DDL, ``"id long, at timestamp"``; fields that it does not name are left out, fields that are missing are null
    :param options: of Spark's JSON reader, as far as they change values and not which records count: ``timestampFormat``, ``timeZone``, …
    """

    type: ClassVar[str] = "json"
    schema: str
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        arguments.text("json: schema", self.schema, accepted='Spark DDL, such as "id long, at timestamp"')
        given = arguments.options("json: options", self.options)
        arguments.known_keys("json: options", {name.lower(): value for name, value in given.items()}, _JSON_OPTIONS)
        object.__setattr__(self, "options", given)


@dataclass(frozen=True, slots=True)
class Avro:
    """
    One Avro record in binary form, and nothing after it. Needs Spark's Avro module.

    :param schema: the record's schema as JSON text: the columns, and without a registry also what was written
    :param registry: URL of a schema registry: messages then start with a zero byte and the number of the schema that wrote them, and every version of the
        subject ``<topic>-value`` (of keys ``<topic>-key``) is read as ``schema``
    """

    type: ClassVar[str] = "avro"
    schema: str
    registry: str | None = None

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


Decoder: TypeAlias = Json | Avro
_DECODERS: dict[str, type[Json] | type[Avro]] = {"json": Json, "avro": Avro}


def decoder(where: str, given: object) -> Decoder | None:
    """
    A decoder as it was given: an object of this module, or as TOML has it a table with a ``type``.

    :raises InvalidError: it is neither
    """
    if given is None or isinstance(given, (Json, Avro)):
        return given
    if not isinstance(given, Mapping):
        raise InvalidError(f"{where} must be a Json or an Avro", given=type(given).__name__, accepted=sorted(_DECODERS))
    chosen = _DECODERS[arguments.choice(f"{where}: type", given.get("type"), _DECODERS)]
    rest = {name: value for name, value in given.items() if name != "type"}
    arguments.known_keys(where, rest, list(chosen.__dataclass_fields__))
    if "schema" not in rest:
        raise InvalidError(f"{where} lacks arguments", missing=["schema"])
    return chosen(**rest)


def to_json(given: Decoder | None) -> Any:
    """A decoder as TOML has it."""
    if given is None:
        return None
    fields = {name: getattr(given, name) for name in given.__dataclass_fields__}
    return {"type": given.type, **{name: value for name, value in fields.items() if value not in (None, {})}}
