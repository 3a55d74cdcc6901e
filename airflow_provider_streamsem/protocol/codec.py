"""
Encodes log entries as canonical JSON and decodes them (PROTOCOL.md, W2-W4, R2, R3).

Canonical JSON is JSON in UTF-8 with sorted keys, without white space and without floats. The field ``checksum`` of an entry is the sha256 of the canonical
JSON of its other fields. The decoder rejects a newer format, ignores unknown fields, and names an invalid field in its error.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from airflow_provider_streamsem.errors import LogDamagedError, NewerFormatError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import FORMAT, Entry, Json, Kind
from airflow_provider_streamsem.protocol.kinds.registry import KINDS

SPILL_BYTES = 65_536
MAX_NESTING = 64
"""Maximum nesting depth of stored JSON, inclusive. Entries that this package writes are nested far less deeply."""
_SPILL = "$spill"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
"""Matches the escape of a surrogate in JSON. A lone surrogate is no character, so UTF-8 cannot encode a text with one."""
E = TypeVar("E", bound=Entry)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Encoded:
    """
    An encoded entry.

    :param data: bytes of the entry
    :param spills: key → bytes of each spilled field, which is too large for the entry. The writer creates these objects before it creates the entry
    """

    data: bytes
    spills: Mapping[str, bytes]

    @property
    def sha256(self) -> str:
        """Return the sha256 of :attr:`data`, by which the next entry of the log references this entry."""
        return sha256(self.data)


def sha256(data: bytes) -> str:
    """Return the sha256 of the bytes as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: Json) -> bytes:
    """
    Encode a value as canonical JSON.

    :raises TypeError: the value contains a float, or a type that JSON does not have. Callers store exact numbers as integers or text
    :raises ValueError: the value is nested deeper than :data:`MAX_NESTING`
    """
    _check_values(value)
    return _dumped(value)


def _dumped(value: Json) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _check_values(value: Json, levels: int = MAX_NESTING) -> None:
    if isinstance(value, float):
        raise TypeError(f"a float has no canonical form: {value!r}")
    _check_depth(value, levels)
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, (list, tuple)) else ()
    for item in items:
        if type(item) is not str and type(item) is not int:  # no calls for most values: a plan may have many thousands
            _check_values(item, levels - 1)


def _check_depth(value: Json, levels: int) -> None:
    if not levels and isinstance(value, (Mapping, list, tuple)):
        raise ValueError(f"nested deeper than {MAX_NESTING} levels")


def read_json(data: bytes | str, key: str, *, any_text: bool = False) -> Json:
    """
    Parse stored JSON, and check its nesting depth and its texts.

    Every reader of log entries calls this function, because stored bytes may be damaged or forged.

    :param any_text: whether a text may contain a lone surrogate, because it comes from another system
    :raises LogDamagedError: the bytes are not JSON in UTF-8, a text contains a lone surrogate, or the value is nested deeper than :data:`MAX_NESTING`
    """
    try:
        text = data if isinstance(data, str) else data.decode()
        value = json.loads(text)
        _check_levels(value, MAX_NESTING)
        if not any_text and _SURROGATE.search(text):
            _dumped(value)
    except (ValueError, RecursionError):  # The cause is not chained, because its message quotes stored bytes.
        raise LogDamagedError("an object is not valid JSON, or is nested too deeply", invariant="I1", key=key) from None
    return value


def _check_levels(value: Json, levels: int) -> None:
    _check_depth(value, levels)
    if isinstance(value, (dict, list)):
        for item in value.values() if isinstance(value, dict) else value:
            if isinstance(item, (dict, list)):
                _check_levels(item, levels - 1)


def plain(value: object, *, sparse: bool = False) -> Json:
    """
    Convert dataclasses, mappings and tuples to the dicts and lists of JSON.

    :param sparse: omit each field that is marked with :data:`SPARSE` and equals its default (W2)
    """
    if isinstance(value, (str, int)):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        tag = {"kind": value.kind} if isinstance(value, Kind) else {}
        return tag | {
            f.name: plain(getattr(value, f.name), sparse=sparse)
            for f in dataclasses.fields(value)
            if not (sparse and _is_omitted(value, f))
        }
    if isinstance(value, Mapping):
        return {key: plain(item, sparse=sparse) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, sparse=sparse) for item in value]
    return value


def _is_omitted(value: object, field: dataclasses.Field[Any]) -> bool:
    default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
    return bool(field.metadata.get("sparse")) and getattr(value, field.name) == default


def encode(entry: Entry) -> Encoded:
    """
    Encode an entry. Each spillable field whose canonical JSON exceeds 64 KiB is replaced with a reference (W4).

    The spilled bytes are canonical JSON and are named by their sha256. Entries with equal fields therefore share one spilled object.
    """
    body: dict[str, Json] = {"entry": entry.entry, "format": FORMAT, **plain(entry, sparse=True)}
    spills: dict[str, bytes] = {}
    for name in entry.spillable:
        data = canonical(body.get(name))
        if len(data) > SPILL_BYTES:
            spills[keys.spill(sha256(data))] = data
            body[name] = {_SPILL: sha256(data), "bytes": len(data)}
    body["checksum"] = sha256(canonical(body))
    return Encoded(data=_dumped(body), spills=spills)


def spilled(cls: type[Any], body: Mapping[str, Json]) -> dict[str, str]:
    """
    Return the sha256 of each spilled field of a parsed entry, by field name.

    :raises LogDamagedError: a reference is not a sha256
    """
    digests = {}
    for name in cls.spillable:
        value = body.get(name)
        if isinstance(value, dict) and set(value) == {_SPILL, "bytes"}:
            digests[name] = str(value[_SPILL])
            if not keys.is_digest(digests[name]):
                raise LogDamagedError("the name of a spilled field is not a sha256", invariant="R6", field=name)
    return digests


def parse(cls: type[Any], key: str, data: bytes) -> dict[str, Json]:
    """
    Parse the JSON object of an entry and check its format, kind and checksum.

    :returns: the fields without ``checksum``. Spilled fields still hold their ``$spill`` reference
    :raises NewerFormatError: the format is newer than this release supports
    :raises LogDamagedError: the bytes are not JSON or not an entry of this kind, or the checksum differs
    """
    body = read_json(data, key)
    if not isinstance(body, dict) or not isinstance(body.get("format"), int):
        raise LogDamagedError("an object is not an entry of this log", invariant="I1", key=key)
    if body["format"] > FORMAT:
        raise NewerFormatError(
            "an entry has a newer format than this release reads", key=key, format=body["format"], reads=FORMAT
        )
    checksum = body.pop("checksum", None)
    if checksum != sha256(_canonical_or_damaged(key, body)):
        raise LogDamagedError(
            "an entry does not match its checksum: its bytes were changed or truncated", invariant="I1", key=key
        )
    if body.get("entry") != cls.entry:
        raise LogDamagedError(
            "an entry has the wrong kind", invariant="I1", key=key, expected=cls.entry, found=body.get("entry")
        )
    return body


def _canonical_or_damaged(key: str, body: Json) -> bytes:
    """No writer can have written a value that canonical JSON lacks, such as a float."""
    try:
        return canonical(body)
    except (TypeError, ValueError) as error:
        raise LogDamagedError(
            "an entry contains a value that canonical JSON cannot represent", invariant="I1", key=key
        ) from error


def lines(key: str, data: bytes) -> list[dict[str, Json]]:
    """
    Parse the records of a JSON Lines object. Lone surrogates in its texts are escaped, because the texts come from records.

    :raises LogDamagedError: a line is not a JSON object, or is nested deeper than :data:`MAX_NESTING`
    """
    records = [_escaped(read_json(line, key, any_text=True), line) for line in data.split(b"\n") if line]
    if not all(isinstance(record, dict) for record in records):
        raise LogDamagedError("a line is not a JSON object", invariant="I1", key=key)
    return records


def _escaped(value: Json, line: bytes) -> Json:
    return _with_escapes(value) if _SURROGATE.search(line.decode()) else value


def _with_escapes(value: Json) -> Json:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {_with_escapes(name): _with_escapes(item) for name, item in value.items()}
    return [_with_escapes(item) for item in value] if isinstance(value, list) else value


def decode(cls: type[E], key: str, data: bytes, parts: Mapping[str, bytes] | None = None) -> E:
    """
    Decode an entry from its bytes.

    :param parts: bytes of each spilled field that :func:`spilled` returned, by field name
    :raises NewerFormatError: the entry has a newer format, or a value that this release does not know
    :raises LogDamagedError: a field is missing or has another type, or a spilled field is missing or has another sha256
    """
    return assemble(cls, key, parse(cls, key, data), parts)


def assemble(cls: type[E], key: str, body: dict[str, Json], parts: Mapping[str, bytes] | None = None) -> E:
    """
    Decode an entry from its parsed object.

    :param body: the result of :func:`parse`. Its spilled fields are replaced
    :param parts: as in :func:`decode`
    :raises NewerFormatError: the entry has a value that this release does not know
    :raises LogDamagedError: as in :func:`decode`
    """
    for name, digest in spilled(cls, body).items():
        part = (parts or {}).get(name)
        if part is None or sha256(part) != digest:
            raise LogDamagedError(
                "a spilled field is missing, or its sha256 differs from its name",
                invariant="I1",
                key=keys.spill(digest),
                entry=key,
            )
        body[name] = read_json(part, keys.spill(digest))
        try:
            canonical(body[name])
        except (TypeError, ValueError) as error:
            summary = "a spilled field is not canonical JSON"
            raise LogDamagedError(summary, invariant="I1", key=keys.spill(digest), entry=key) from error
    _check_texts(body, key)
    built: E = build(cls, body, key)
    return built


def _check_texts(body: Mapping[str, Json], key: str) -> None:
    """Check the nesting depth of JSON that an entry stores as text: schemas and file statistics. Readers parse these texts later."""
    schemas, sinks = body.get("schemas"), body.get("sinks")
    texts = [*schemas.values()] if isinstance(schemas, dict) else []
    for sink in sinks.values() if isinstance(sinks, dict) else ():
        files = sink.get("files") if isinstance(sink, dict) else None
        texts += [file.get("stats") for file in files if isinstance(file, dict)] if isinstance(files, list) else []
    for text in texts:
        # The nesting depth is at most the number of opening brackets. The count avoids parsing most texts here.
        if isinstance(text, str) and text.count("{") + text.count("[") > MAX_NESTING:
            read_json(text, key)


def build(cls: type[Any], body: Json, where: str) -> Any:
    """
    Build a protocol dataclass from parsed JSON.

    :raises NewerFormatError: an enumerated field has a value that this release does not know
    :raises LogDamagedError: a field is missing or has another type, or a key points outside its root
    """
    if not isinstance(body, dict):
        raise LogDamagedError("a field has a type that the protocol does not allow", invariant="I1", where=where)
    hints = _hints(cls)  # type: ignore[arg-type]
    values = {}
    for f in dataclasses.fields(cls):
        if f.name in body:
            values[f.name] = _value(hints[f.name], body[f.name], f"{where}:{f.name}")
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise LogDamagedError("a field of an entry is missing", invariant="I1", where=f"{where}:{f.name}")
    return cls(**values)


@cache
def _hints(cls: type[Any]) -> dict[str, Any]:
    return get_type_hints(cls)


@cache
def _shape(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def _value(hint: Any, value: Json, where: str) -> Any:
    if hint is Any or ((hint is str or hint is int or hint is bool) and type(value) is hint):
        return value
    origin, args = _shape(hint)
    if origin is UnionType:
        if value is None and NoneType in args:
            return None
        return _value(next(a for a in args if a is not NoneType), value, where)
    if origin is Literal:
        if value not in args:
            raise NewerFormatError(
                "an entry contains a value that this release does not know", where=where, found=value, reads=args
            )
        return value
    if origin is tuple and isinstance(value, list):
        if args[-1] is Ellipsis:
            return tuple(_value(args[0], item, where) for item in value)
        if len(value) == len(args):
            return tuple(_value(a, item, where) for a, item in zip(args, value, strict=True))
    if isinstance(origin, type) and issubclass(origin, Mapping) and isinstance(value, dict):
        return {str(k): _value(args[1], item, f"{where}.{k}") for k, item in value.items()}
    if hint is Kind and isinstance(value, dict):
        kind = value.get("kind")
        if not isinstance(kind, str) or kind not in KINDS:
            raise NewerFormatError(
                "an entry contains a value that this release does not know", where=where, found=kind, reads=[*KINDS]
            )
        return build(KINDS[kind], value, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return build(hint, value, where)
    raise LogDamagedError("a field has a type or value that the protocol does not allow", invariant="I1", where=where)
