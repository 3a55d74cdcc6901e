"""Reads the Avro schemas of subjects from a schema registry with Confluent's REST interface."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from airflow_provider_streamsem.connections import clear_text_warning, connection, http_url
from airflow_provider_streamsem.connectors.parsing import avro_schemas
from airflow_provider_streamsem.connectors.parsing.decoders import Avro, Debezium, Decoder
from airflow_provider_streamsem.errors import DataError, InvalidError, StoreRefusedError, UnavailableError

_TIMEOUT_S = 30


@dataclass(frozen=True, slots=True)
class Registry:
    """A schema registry. The URL has no credentials; ``authorization`` is the header, or ``""``."""

    url: str
    authorization: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version of a subject."""

    subject: str
    number: int
    id: int
    schema: str
    has_references: bool

    def unreadable(self, reader: str) -> str | None:
        """Return why the reader schema cannot read the records of this version exactly, or ``None`` if it can."""
        if (why := self.incomplete) is not None:
            return why
        inexact = avro_schemas.inexact_field(self.schema, reader)
        return None if inexact is None else f"{self._name}: its values would change in field {inexact}"

    @property
    def incomplete(self) -> str | None:
        """Why the schema does not describe the records of this version by itself, or ``None`` if it does."""
        return f"{self._name}: it refers to other schemas, which is not supported" if self.has_references else None

    @property
    def _name(self) -> str:
        return f"schema {self.id} (subject {self.subject}, version {self.number})"


def registry_of(decoder: Avro | Debezium) -> Registry | None:
    """Return the registry of a decoder; ``None`` if it has none. Refuses a connection without a valid host, or with a query string or an extra."""
    if decoder.registry is not None:
        return Registry(decoder.registry.rstrip("/"))
    if decoder.registry_conn_id is None:
        return None
    conn = connection(decoder.registry_conn_id)
    if conn.extra:
        summary = "the extra of the connection of a schema registry has no effect, so it must be empty; nothing became visible"
        raise InvalidError(summary, conn_id=conn.conn_id, given=sorted(conn.extra))
    url = http_url(conn)
    if "?" in url or "#" in url:
        summary = "the URL of a schema registry must have no query string; nothing became visible"
        raise InvalidError(summary, conn_id=conn.conn_id)
    credentials = base64.b64encode(f"{conn.login}:{conn.password}".encode()).decode()
    return Registry(url.rstrip("/"), f"Basic {credentials}" if conn.login or conn.password else "")


def warnings(decoder: Decoder | None) -> list[str]:
    """Return a warning if credentials of a registry are sent without encryption; none without a registry, or if the connection is not valid."""
    if not isinstance(decoder, (Avro, Debezium)):
        return []
    try:
        registry = registry_of(decoder)
    except InvalidError:
        return []
    if registry is None or not registry.authorization or not registry.url.startswith("http:"):
        return []
    host = urlsplit(registry.url).hostname or ""
    advice = "set the host of the connection to the https:// URL of the registry"
    sent = "the credentials of connection {conn_id}"
    return clear_text_warning("schema registry", decoder.registry_conn_id or "", host, advice, sent=sent)


def versions_of(registry: Registry, subjects: list[str]) -> list[SchemaVersion]:
    """Return every Avro version of the subjects. If there is none, raises ``DataError``."""
    versions: list[SchemaVersion] = []
    for subject in subjects:
        location = f"{registry.url}/subjects/{quote(subject, safe='')}/versions"
        numbers = _get(registry, location)
        if not isinstance(numbers, list) or not all(type(number) is int for number in numbers):
            raise _unavailable(location)
        for number in numbers:
            response = _get(registry, f"{location}/{number}")
            if response and not isinstance(response, dict):
                raise _unavailable(location)
            if response and response.get("schemaType", "AVRO") == "AVRO":
                versions.append(_version(f"{location}/{number}", subject, number, response))
    if not versions:
        raise DataError("the schema registry has no Avro schema for these subjects", subjects=subjects)
    return versions


def _version(location: str, subject: str, number: int, response: Mapping[str, Any]) -> SchemaVersion:
    try:
        schema = response["schema"]
        json.loads(schema)
        return SchemaVersion(subject, number, int(response["id"]), schema, bool(response.get("references")))
    except (
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ):  # the cause is not chained, because its message quotes the response
        raise _unavailable(location) from None


def _get(registry: Registry, location: str) -> Any:
    """An empty list if there is nothing at the location."""
    request = urllib.request.Request(location)
    if registry.authorization:
        request.add_unredirected_header("Authorization", registry.authorization)  # never sent to another host
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return []
        if error.code in (401, 403):
            summary = "the schema registry refused a request; nothing became visible"
            raise StoreRefusedError(summary, location=location, status=error.code).advising(
                "set login and password of the connection that registry_conn_id names, and give this user the right to read the subject; then run again."
            ) from None
        raise _unavailable(location) from error
    except (OSError, ValueError, RecursionError) as error:
        raise _unavailable(location) from error


def _unavailable(location: str) -> UnavailableError:
    return UnavailableError(
        "the schema registry did not report the result of a request; nothing became visible", location=location
    )
