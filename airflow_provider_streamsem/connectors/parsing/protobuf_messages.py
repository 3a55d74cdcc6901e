"""
Decodes Protobuf messages into rows of Arrow. Needs only the standard library, protobuf and pyarrow, because executors run this module.

An executor gets the functions of this module by value, so it needs no installation of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.connectors.varints import varint

if TYPE_CHECKING:
    import pyarrow as pa

_SECONDS = (-62_135_596_800, 253_402_300_799)
"""The first and last second of a Protobuf timestamp: the years 1 to 9999."""


class DescriptorsError(Exception):
    """The descriptor file does not define the message type, or the type has no columns of Spark."""


class MessageError(Exception):
    """A message cannot be decoded exactly. The text is the reason, and contains no value of the message."""


def descriptor_of(descriptors: bytes, message: str) -> Any:
    """Return the descriptor of a message type. The file must have all imported files (``DescriptorsError``)."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    pool, names = descriptor_pool.DescriptorPool(), []
    try:
        for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
            pool.AddSerializedFile(file.SerializeToString())
            names += [f"{file.package}.{kind.name}".lstrip(".") for kind in file.message_type]
        return pool.FindMessageTypeByName(message)
    except DecodeError:
        raise DescriptorsError("it is not a descriptor file of protoc") from None
    except TypeError as error:
        raise DescriptorsError(f"it lacks an imported file; call protoc with --include_imports ({error})") from None
    except KeyError:
        raise DescriptorsError(f"it does not define this message type, but {', '.join(sorted(names))}") from None


def row_type(message: Any) -> pa.DataType:
    """Return an Arrow struct with one field for each field of the message. No fields, and recursion, are refused (``DescriptorsError``)."""
    return _struct(message, ())


def _struct(message: Any, outer: tuple[str, ...]) -> pa.DataType:
    import pyarrow as pa

    if message.full_name in outer:
        raise DescriptorsError(f"the message {message.full_name} contains a message of its own type")
    if not message.fields:
        raise DescriptorsError(f"the message {message.full_name} has no fields")
    inside = (*outer, message.full_name)
    return pa.struct([pa.field(field.name, _field_type(field, inside)) for field in message.fields])


def _field_type(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    import pyarrow as pa

    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_value_type(entry["key"], outer), _value_type(entry["value"], outer))
    kind = _value_type(field, outer)
    return pa.list_(kind) if _is_repeated(field) else kind


def _is_time(field: Any) -> bool:
    return bool(field.message_type.full_name == "google.protobuf.Timestamp")


def _value_type(field: Any, outer: tuple[str, ...]) -> pa.DataType:
    import pyarrow as pa

    kind = field.type
    if kind in (field.TYPE_MESSAGE, field.TYPE_GROUP):
        return pa.timestamp("us", tz="UTC") if _is_time(field) else _struct(field.message_type, outer)
    return {
        field.TYPE_BOOL: pa.bool_(), field.TYPE_BYTES: pa.binary(), field.TYPE_DOUBLE: pa.float64(), field.TYPE_ENUM: pa.string(),
        field.TYPE_FIXED32: pa.int64(), field.TYPE_FIXED64: pa.decimal128(20, 0), field.TYPE_FLOAT: pa.float32(), field.TYPE_INT32: pa.int32(),
        field.TYPE_INT64: pa.int64(), field.TYPE_SFIXED32: pa.int32(), field.TYPE_SFIXED64: pa.int64(), field.TYPE_SINT32: pa.int32(),
        field.TYPE_SINT64: pa.int64(), field.TYPE_STRING: pa.string(), field.TYPE_UINT32: pa.int64(), field.TYPE_UINT64: pa.decimal128(20, 0),
    }[kind]  # fmt: skip


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _is_repeated(field: Any) -> bool:
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # before protobuf 6.31


def decoder(message: Any, *, has_schema_id: bool) -> Callable[[bytes], dict[str, Any]]:
    """Return a function from bytes to a row of :func:`row_type`. It raises ``MessageError`` for other bytes, and values that a column cannot hold."""
    from google.protobuf.message import DecodeError
    from google.protobuf.message_factory import GetMessageClass

    parsed, read, indexes = GetMessageClass(_with_numbers(message)), _reader(message), _indexes(message)

    def decode(data: bytes) -> dict[str, Any]:
        content = _after_indexes(data, indexes) if has_schema_id else data
        try:
            return read(parsed.FromString(content))
        except DecodeError:
            raise MessageError(f"it is not a {message.full_name}") from None

    return decode


def _with_numbers(message: Any) -> Any:
    """In proto2, an unknown value of an enum moves to the unknown fields, where order and map keys are lost. An integer does not."""
    from google.protobuf import descriptor_pb2, descriptor_pool

    pool, added = descriptor_pool.DescriptorPool(), set()

    def add(file: Any) -> None:
        if file.name in added:
            return
        added.add(file.name)
        for dependency in file.dependencies:
            add(dependency)
        copied = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(copied)
        for kind in copied.message_type:
            replace(kind)
        pool.AddSerializedFile(copied.SerializeToString())

    def replace(kind: Any) -> None:
        for nested in kind.nested_type:
            replace(nested)
        for field in kind.field:
            if field.type == field.TYPE_ENUM:
                field.type = field.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField(
                    "default_value"
                )  # a field with another default than 0 has presence, so it is null if it is not set

    add(message.file)
    return pool.FindMessageTypeByName(message.full_name)


def _reader(message: Any) -> Callable[[Any], dict[str, Any]]:
    """A field that has presence and is not set is null."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    known = frozenset(message.fields_by_number)
    fields = [
        (field.name, field.has_presence and not _is_repeated(field), _converter(field)) for field in message.fields
    ]

    def read(value: Any) -> dict[str, Any]:
        for unknown in UnknownFieldSet(value):
            # The parser keeps a field of another type among the unknown fields.
            if unknown.field_number in known:
                name = message.fields_by_number[unknown.field_number].full_name
                raise MessageError(f"the field {name} was written with another type")
        return {
            name: None if has_presence and not value.HasField(name) else convert(getattr(value, name))
            for name, has_presence, convert in fields
        }

    return read


def _converter(field: Any) -> Callable[[Any], Any]:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = _single(entry["key"]), _single(entry["value"])
        return lambda values: _pairs(field.full_name, values, key, value)
    single = _single(field)
    return (lambda values: [single(value) for value in values]) if _is_repeated(field) else single


def _single(field: Any) -> Callable[[Any], Any]:
    kind = field.type
    if kind in (field.TYPE_MESSAGE, field.TYPE_GROUP):
        return _micros(field.full_name) if _is_time(field) else _reader(field.message_type)
    if kind == field.TYPE_ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if kind == field.TYPE_STRING:
        return _text(field.full_name)
    return Decimal if kind in (field.TYPE_UINT64, field.TYPE_FIXED64) else lambda value: value


def _pairs(name: str, values: Any, key: Callable[[Any], Any], value: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    try:
        keys = [key(each) for each in values]
        # The order of a map differs between processes. Sorted, all attempts stage the same rows.
        return [(each, value(values[each])) for each in sorted(keys)]
    except UnicodeDecodeError:
        raise MessageError(f"a key of the field {name} is not UTF-8") from None


def _text(name: str) -> Callable[[Any], str]:
    def text(value: Any) -> str:
        if isinstance(value, bytes):  # In proto2 syntax, the library returns a text that is not UTF-8 as bytes.
            raise MessageError(f"the field {name} is not UTF-8")
        return str(value)

    return text


def _micros(name: str) -> Callable[[Any], int]:
    def micros(value: Any) -> int:
        if not (_SECONDS[0] <= value.seconds <= _SECONDS[1] and 0 <= value.nanos < 1_000_000_000):
            raise MessageError(f"the field {name} is not a valid timestamp")
        if value.nanos % 1_000:
            raise MessageError(f"the field {name} has nanoseconds, which the column cannot hold")
        return int(value.seconds) * 1_000_000 + int(value.nanos) // 1_000

    return micros


def _indexes(message: Any) -> set[tuple[int, ...]]:
    """
    Serializers do not agree on whether the messages that Protobuf generates for maps count. So the index without them is returned too, unless it is that of
    another message.
    """
    from google.protobuf import descriptor_pb2

    path = [message]
    while path[0].containing_type is not None:
        path.insert(0, path[0].containing_type)
    file = descriptor_pb2.FileDescriptorProto()
    message.file.CopyToProto(file)
    index, without_maps, kinds, is_other = [], [], file.message_type, False
    for part in path:
        names = [kind.name for kind in kinds]
        index.append(names.index(part.name))
        without_maps.append([kind.name for kind in kinds if not kind.options.map_entry].index(part.name))
        is_other = is_other or (without_maps[-1] != index[-1] and not kinds[without_maps[-1]].options.map_entry)
        kinds = kinds[index[-1]].nested_type
    return {tuple(index)} if is_other else {tuple(index), tuple(without_maps)}


def _after_indexes(data: bytes, accepted: set[tuple[int, ...]]) -> bytes:
    """Return the message after the zero byte, the schema id and the index: its length, and then its numbers. The length 0 stands for the index ``(0,)``."""
    if data[:1] != b"\0":
        raise MessageError("it does not start with the zero byte of a schema registry")
    length, at = _signed(data, 5)
    if length < 0:
        raise MessageError("the index of the message type has a negative length")
    index = []
    for _ in range(length):
        number, at = _signed(data, at)
        index.append(number)
    if tuple(index or [0]) not in accepted:
        raise MessageError(f"its message type has the index {index or [0]}, not {[*min(accepted)]}")
    return data[at:]


def _signed(data: bytes, at: int) -> tuple[int, int]:
    """Zigzag encoding."""
    try:
        value, at = varint(data, at, most_bytes=5)
    except ValueError:
        raise MessageError("the index of the message type is truncated") from None
    return (value >> 1) ^ -(value & 1), at


def with_rows(
    batches: Iterator[pa.RecordBatch], *, column: str, descriptors: bytes, message: str, has_schema_id: bool
) -> Iterator[pa.RecordBatch]:
    """Append the columns ``record`` (null for a null message) and ``reason`` (why the message is bad, or null) to batches."""
    import pyarrow as pa

    kind = descriptor_of(descriptors, message)
    decode, struct = decoder(kind, has_schema_id=has_schema_id), row_type(kind)
    for batch in batches:
        rows: list[Mapping[str, Any] | None] = []
        reasons: list[str | None] = []
        for data in batch.column(column):
            row, reason = None, None
            try:
                row = decode(data.as_py()) if data.is_valid else None
            except MessageError as error:
                reason = str(error)
            rows.append(row)
            reasons.append(reason)
        yield pa.RecordBatch.from_arrays(
            [*batch.columns, pa.array(rows, struct), pa.array(reasons, pa.string())],
            [*batch.schema.names, "record", "reason"],
        )
