"""The descriptor file of a small Protobuf schema, as protoc writes it, and its messages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2
from google.protobuf.message_factory import GetMessageClass

_FIELD = descriptor_pb2.FieldDescriptorProto


def descriptors() -> descriptor_pb2.FileDescriptorSet:
    """
    Return the descriptors of this schema.

    .. code-block:: protobuf

        syntax = "proto3";
        package shop;
        import "google/protobuf/timestamp.proto";
        enum Status { NEW = 0; PAID = 1; }
        message Order {
          message Line { string sku = 1; uint32 count = 2; }
          int64 id = 1;
          string user = 2;
          uint64 amount = 3;
          google.protobuf.Timestamp at = 4;
          repeated string tags = 5;
          map<string, int32> attributes = 6;
          repeated Line lines = 7;
          optional string note = 8;
          Status status = 9;
          bytes raw = 10;
          double class = 11;
        }
        message Item { string sku = 1; }
        message Tree { repeated Tree children = 1; }
    """
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="orders.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    status = file.enum_type.add(name="Status")
    for number, name in enumerate(("NEW", "PAID")):
        status.value.add(name=name, number=number)
    order = file.message_type.add(name="Order")
    attributes = order.nested_type.add(name="AttributesEntry")
    attributes.options.map_entry = True
    _add(attributes, "key", 1, _FIELD.TYPE_STRING)
    _add(attributes, "value", 2, _FIELD.TYPE_INT32)
    line = order.nested_type.add(name="Line")
    _add(line, "sku", 1, _FIELD.TYPE_STRING)
    _add(line, "count", 2, _FIELD.TYPE_UINT32)
    _add(order, "id", 1, _FIELD.TYPE_INT64)
    _add(order, "user", 2, _FIELD.TYPE_STRING)
    _add(order, "amount", 3, _FIELD.TYPE_UINT64)
    _add(order, "at", 4, _FIELD.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp")
    _add(order, "tags", 5, _FIELD.TYPE_STRING, label=_FIELD.LABEL_REPEATED)
    repeated = {"label": _FIELD.LABEL_REPEATED}
    _add(order, "attributes", 6, _FIELD.TYPE_MESSAGE, type_name=".shop.Order.AttributesEntry", **repeated)
    _add(order, "lines", 7, _FIELD.TYPE_MESSAGE, type_name=".shop.Order.Line", **repeated)
    order.oneof_decl.add(name="_note")
    _add(order, "note", 8, _FIELD.TYPE_STRING, oneof_index=0, proto3_optional=True)
    _add(order, "status", 9, _FIELD.TYPE_ENUM, type_name=".shop.Status")
    _add(order, "raw", 10, _FIELD.TYPE_BYTES)
    _add(order, "class", 11, _FIELD.TYPE_DOUBLE)
    _add(file.message_type.add(name="Item"), "sku", 1, _FIELD.TYPE_STRING)
    tree = file.message_type.add(name="Tree")
    _add(tree, "children", 1, _FIELD.TYPE_MESSAGE, type_name=".shop.Tree", **repeated)
    return files


def proto2() -> descriptor_pb2.FileDescriptorSet:
    """Return the descriptors of a message ``old.Event`` in proto2 syntax: ``name``, repeated ``names``, and a map ``counts``."""
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="old.proto", package="old", syntax="proto2")
    event = file.message_type.add(name="Event")
    entry = event.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    _add(entry, "key", 1, _FIELD.TYPE_STRING)
    _add(entry, "value", 2, _FIELD.TYPE_INT32)
    repeated = {"label": _FIELD.LABEL_REPEATED}
    _add(event, "name", 1, _FIELD.TYPE_STRING)
    _add(event, "names", 2, _FIELD.TYPE_STRING, **repeated)
    _add(event, "counts", 3, _FIELD.TYPE_MESSAGE, type_name=".old.Event.CountsEntry", **repeated)
    return files


def _add(message: Any, name: str, number: int, kind: int, *, label: int = _FIELD.LABEL_OPTIONAL, **more: Any) -> None:
    message.field.add(name=name, number=number, type=kind, label=label, **more)


def descriptor_file(directory: Path) -> str:
    """Write the descriptor file and return its path."""
    path = directory / "orders.desc"
    path.write_bytes(descriptors().SerializeToString())
    return str(path)


def message(name: str, **fields: Any) -> bytes:
    """Return an encoded message, such as ``message("Order", id=1)``."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors().file:
        pool.AddSerializedFile(file.SerializeToString())
    found: bytes = GetMessageClass(pool.FindMessageTypeByName(f"shop.{name}"))(**fields).SerializeToString()
    return found
