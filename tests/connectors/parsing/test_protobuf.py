"""Protobuf messages become exactly the rows that Protobuf's library reads. Other bytes, and values that a column cannot hold, make a message bad."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Json, KafkaSource, Protobuf
from airflow_provider_streamsem.connectors.kafka.records import COLUMNS, KafkaRecords
from airflow_provider_streamsem.connectors.parsing import decoders
from airflow_provider_streamsem.connectors.parsing.protobuf_messages import (
    DescriptorsError,
    MessageError,
    decoder,
    descriptor_of,
    row_type,
)
from airflow_provider_streamsem.errors import InvalidError
from tests.connectors.parsing.orders_proto import descriptor_file, descriptors, message, proto2

FILE = descriptors().SerializeToString()
DECODE = decoder(descriptor_of(FILE, "shop.Order"), has_schema_id=False)
DEFAULTS = {
    "id": 0, "user": "", "amount": Decimal(0), "at": None, "tags": [], "attributes": [], "lines": [], "note": None, "status": "NEW", "raw": b"", "class": 0.0,
}  # fmt: skip


def test_fields_become_values_and_missing_fields_become_defaults_or_null() -> None:
    full = message(
        "Order", id=-1, user="é", amount=2**64 - 1, at={"seconds": 5, "nanos": 1_000}, tags=["a", ""], attributes={"b": 1, "a": 2},
        lines=[{"sku": "s", "count": 2**32 - 1}], note="", status=1, raw=b"\xff", **{"class": 0.5},
    )  # fmt: skip
    assert DECODE(full) == {
        "id": -1, "user": "é", "amount": Decimal(2**64 - 1), "at": 5_000_001, "tags": ["a", ""], "attributes": [("a", 2), ("b", 1)],
        "lines": [{"sku": "s", "count": 2**32 - 1}], "note": "", "status": "PAID", "raw": b"\xff", "class": 0.5,
    }  # fmt: skip
    assert DECODE(b"") == DEFAULTS


def test_unknown_field_is_ignored_and_unknown_number_of_an_enum_becomes_its_text() -> None:
    assert DECODE(message("Order", status=7) + b"\xf8\x07\x01") == {**DEFAULTS, "status": "7"}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff", "it is not a shop.Order"),
        (message("Order", user="ann")[:-1], "it is not a shop.Order"),
        (b"\x12\x02\xff\xfe", "it is not a shop.Order"),
        (b"\x0a\x01a", "field shop.Order.id was written with another type"),
        (b"\x3a\x02\x08\x05", "field shop.Order.Line.sku was written with another type"),
        (message("Order", at={"nanos": 1}), "field shop.Order.at has nanoseconds"),
        (message("Order", at={"nanos": -1_000}), "field shop.Order.at is not a valid timestamp"),
        (message("Order", at={"seconds": 2**60}), "field shop.Order.at is not a valid timestamp"),
    ],
    ids=str,
)
def test_message_that_cannot_be_decoded_exactly_is_bad(data: bytes, reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        DECODE(data)


@given(
    st.builds(
        lambda **fields: message("Order", **fields),
        id=st.integers(-(2**63), 2**63 - 1), user=st.text(), amount=st.integers(0, 2**64 - 1), tags=st.lists(st.text()), raw=st.binary(),
        attributes=st.dictionaries(st.text(), st.integers(-(2**31), 2**31 - 1)),
    ),
    st.integers(0, 100),
)  # fmt: skip
def test_any_message_is_decoded_and_any_part_of_it_is_decoded_or_bad(data: bytes, length: int) -> None:
    row = DECODE(data)
    encoded = {name: value for name, value in row.items() if name not in ("amount", "attributes", "at", "status")}
    assert DECODE(message("Order", amount=int(row["amount"]), attributes=dict(row["attributes"]), **encoded)) == row
    try:
        DECODE(data[:length])
    except MessageError:
        return


# The bytes that confluent_kafka's ProtobufSerializer writes for the schema id 7.
FRAMED = {
    "shop.Order": b"\x00\x00\x00\x00\x07\x00\x08\x05",
    "shop.Order.Line": b"\x00\x00\x00\x00\x07\x04\x00\x02\n\x01a",
    "shop.Item": b"\x00\x00\x00\x00\x07\x02\x02\n\x01a",
}


@pytest.mark.parametrize("name", FRAMED)
def test_schema_id_and_index_of_a_registry_are_skipped_and_other_types_are_bad(name: str) -> None:
    decode = decoder(descriptor_of(FILE, name), has_schema_id=True)
    assert decode(FRAMED[name]) == (
        {**DEFAULTS, "id": 5} if name == "shop.Order" else {"sku": "a", **({"count": 0} if "Line" in name else {})}
    )
    for other, data in FRAMED.items():
        if other != name:
            with pytest.raises(MessageError, match="its message type has the index"):
                decode(data)
    for length in range(6):
        with pytest.raises(MessageError, match=r"zero byte|truncated"):
            decode(FRAMED[name][:length])
    with pytest.raises(MessageError, match="zero byte"):
        decode(b"\x01" + FRAMED[name][1:])


def test_index_of_a_serializer_that_does_not_count_map_entries_is_accepted() -> None:
    decode = decoder(descriptor_of(FILE, "shop.Order.Line"), has_schema_id=True)
    assert decode(b"\x00\x00\x00\x00\x07\x04\x00\x00\n\x01a") == {"sku": "a", "count": 0}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x0a\x02\xff\xfe", "field old.Event.name is not UTF-8"),
        (b"\x12\x02\xff\xfe", "field old.Event.names is not UTF-8"),
        (b"\x1a\x06\x0a\x02\xff\xfe\x10\x01", "field old.Event.CountsEntry.key is not UTF-8"),
        (b"\x1a\x05\x0a\x01a\x10\x01\x1a\x06\x0a\x02\xff\xfe\x10\x01", "field old.Event.CountsEntry.key is not UTF-8"),
    ],
)  # fmt: skip
def test_text_of_proto2_syntax_that_is_not_utf8_is_bad(data: bytes, reason: str) -> None:
    """The parser accepts it, unlike in proto3 syntax."""
    decode = decoder(descriptor_of(proto2().SerializeToString(), "old.Event"), has_schema_id=False)
    assert decode(b"\x0a\x02ab") == {"name": "ab", "names": [], "counts": []}
    assert decode(b"") == {"name": None, "names": [], "counts": []}
    with pytest.raises(MessageError, match=reason):
        decode(data)


def closed_enums() -> bytes:
    """
    Return the descriptor file of this schema.

    .. code-block:: protobuf

        syntax = "proto2";
        package closed;
        enum Status { NEW = 1; PAID = 2; }
        enum Zero { NOTHING = 0; }
        message Order {
          enum Kind { NONE = -1; }
          message Line { required Status status = 1; }
          optional Status status = 1 [default = PAID];
          repeated Status history = 2;
          map<string, Zero> states = 3;
          repeated Line lines = 4;
          optional Kind kind = 5;
          repeated Status packed = 6 [packed = true];
          oneof last { Status is_open = 7; string is_closed = 8; }
          optional Status never = 9;
        }
    """
    kinds = descriptor_pb2.FieldDescriptorProto
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="closed.proto", package="closed", syntax="proto2")
    status = file.enum_type.add(name="Status")
    for number, name in ((1, "NEW"), (2, "PAID")):
        status.value.add(name=name, number=number)
    file.enum_type.add(name="Zero").value.add(name="NOTHING", number=0)
    order = file.message_type.add(name="Order")
    order.enum_type.add(name="Kind").value.add(name="NONE", number=-1)
    entry = order.nested_type.add(name="StatesEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=kinds.TYPE_ENUM, type_name=".closed.Zero", label=kinds.LABEL_OPTIONAL)
    line = order.nested_type.add(name="Line")
    line.field.add(
        name="status", number=1, type=kinds.TYPE_ENUM, type_name=".closed.Status", label=kinds.LABEL_REQUIRED
    )
    enum = {"type": kinds.TYPE_ENUM, "type_name": ".closed.Status", "label": kinds.LABEL_OPTIONAL}
    many = {**enum, "label": kinds.LABEL_REPEATED}
    order.field.add(name="status", number=1, default_value="PAID", **enum)
    order.field.add(name="history", number=2, **many)
    order.field.add(
        name="states", number=3, **{**many, "type": kinds.TYPE_MESSAGE, "type_name": ".closed.Order.StatesEntry"}
    )
    order.field.add(name="lines", number=4, **{**many, "type": kinds.TYPE_MESSAGE, "type_name": ".closed.Order.Line"})
    order.field.add(name="kind", number=5, **{**enum, "type_name": ".closed.Order.Kind"})
    order.field.add(name="packed", number=6, **many).options.packed = True
    order.oneof_decl.add(name="last")
    order.field.add(name="is_open", number=7, oneof_index=0, **enum)
    order.field.add(name="is_closed", number=8, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL, oneof_index=0)
    order.field.add(name="never", number=9, **enum)
    return files.SerializeToString()


def test_unknown_number_of_an_enum_of_proto2_syntax_becomes_its_text_in_its_place() -> None:
    decode = decoder(descriptor_of(closed_enums(), "closed.Order"), has_schema_id=False)
    unset = {
        "status": None, "history": [], "states": [], "lines": [], "kind": None, "packed": [], "is_open": None, "is_closed": None, "never": None,
    }  # fmt: skip
    assert decode(b"") == unset
    data = (
        b"\x08\x07"
        + b"\x10\x02\x10\x09\x10\x01"
        + b"\x1a\x05\x0a\x01a\x10\x08"
        + b"\x1a\x03\x0a\x01b"
        + b"\x22\x02\x08\x05"
    )
    data += b"\x28" + b"\xfe" + b"\xff" * 8 + b"\x01" + b"\x32\x03\x02\x63\x01" + b"\x38\x0c"
    assert decode(data) == {
        "status": "7", "history": ["PAID", "9", "NEW"], "states": [("a", "8"), ("b", "NOTHING")], "lines": [{"status": "5"}], "kind": "-2",
        "packed": ["PAID", "99", "NEW"], "is_open": "12", "is_closed": None, "never": None,
    }  # fmt: skip
    with pytest.raises(MessageError, match=r"field closed\.Order\.status was written with another type"):
        decode(b"\x0a\x01a")


def test_index_that_another_message_has_is_not_accepted_for_a_serializer_that_counts_no_map_entries() -> None:
    file = proto2()
    for name in ("First", "Second"):
        file.file[0].message_type[0].nested_type.add(name=name).field.add(name="n", number=1, type=5, label=1)
    first, second = (
        decoder(descriptor_of(file.SerializeToString(), f"old.Event.{name}"), has_schema_id=True)
        for name in ("First", "Second")
    )
    # The map entry has the index 0, so 1 is First, or Second if map entries do not count.
    assert first(b"\x00\x00\x00\x00\x07\x04\x00\x02\x08\x05") == {"n": 5}
    with pytest.raises(MessageError, match="its message type has the index"):
        second(b"\x00\x00\x00\x00\x07\x04\x00\x02\x08\x05")
    with pytest.raises(MessageError, match="negative length"):
        first(b"\x00\x00\x00\x00\x07\x01")


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (b"\xff", "shop.Order", "not a descriptor file"),
        (FILE, "shop.Nope", "does not define this message type, but google.protobuf.Timestamp, shop.Item, shop.Order, shop.Tree"),
        (descriptor_pb2.FileDescriptorSet(file=[descriptors().file[1]]).SerializeToString(), "shop.Order", "--include_imports"),
    ],
    ids=["no file", "unknown type", "without imports"],
)  # fmt: skip
def test_descriptor_file_that_does_not_define_the_type_is_refused(content: bytes, name: str, reason: str) -> None:
    with pytest.raises(DescriptorsError, match=reason):
        descriptor_of(content, name)


def test_message_that_contains_its_own_type_is_refused() -> None:
    with pytest.raises(DescriptorsError, match=r"shop\.Tree contains a message of its own type"):
        row_type(descriptor_of(FILE, "shop.Tree"))


@pytest.mark.parametrize(
    "table",
    [{"type": "protobuf", "message": "a b", "descriptors": "/f"}, {"type": "protobuf", "message": "a"}, {"type": "protobuf", "message": "a", "descriptors": ""}],
    ids=["name", "no file", "empty path"],
)  # fmt: skip
def test_invalid_arguments_are_refused(table: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        decoders.decoder("value", table)


def test_decoder_in_a_spec_is_read_back_equal() -> None:
    for protobuf in (Protobuf("shop.Order", "/f"), Protobuf("shop.Order", "/f", has_schema_id=True)):
        assert decoders.decoder("value", decoders.to_json(protobuf)) == protobuf


def kafka_records(spark: SparkSession, values: list[bytes | None], **parts: Any) -> KafkaRecords:
    at = datetime(2026, 1, 2, tzinfo=timezone.utc)
    rows = [("t", 0, n, at, None, b"k", value) for n, value in enumerate(values)]
    return KafkaRecords(spark.createDataFrame(rows, COLUMNS), **{"key": None, "value": None, **parts}, topics=["t"])


@pytest.mark.spark
def test_spark_decodes_values_and_quarantines_bad_ones_with_the_reason(spark: SparkSession, tmp_path: Path) -> None:
    values = [message("Order", id=1, amount=2**64 - 1, at={"seconds": 1}, lines=[{"sku": "s"}]), None, b"\xff", b""]
    loaded = kafka_records(spark, values, value=Protobuf("shop.Order", descriptor_file(tmp_path)))
    assert loaded.bad is not None
    kinds = dict(loaded.frame.dtypes)
    assert (kinds["id"], kinds["amount"], kinds["at"]) == ("bigint", "decimal(20,0)", "timestamp")
    assert kinds["attributes"] == "map<string,int>"
    rows = loaded.frame.where(~loaded.bad).orderBy("kafka_offset").collect()
    assert [(row["kafka_offset"], row["id"], row["user"]) for row in rows] == [(0, 1, ""), (1, None, None), (3, 0, "")]
    assert (rows[0]["amount"], rows[0]["at"].timestamp(), rows[0]["lines"][0]["sku"]) == (Decimal(2**64 - 1), 1.0, "s")
    (bad,) = loaded.bad_records()
    assert (bad.location["offset"], bad.location["encoding"], bad.raw) == (2, "base64", "/w==")
    assert bad.error == "value cannot be decoded: it is not a shop.Order"


@pytest.mark.spark
def test_key_and_value_have_different_decoders(spark: SparkSession, tmp_path: Path) -> None:
    key = Protobuf("shop.Item", descriptor_file(tmp_path))
    loaded = kafka_records(spark, [b'{"id": 1}'], key=key, value=Json("id long"))
    assert [bad.error for bad in loaded.bad_records()] == ["key cannot be decoded: it is not a shop.Item"]


@pytest.mark.spark
@pytest.mark.parametrize(
    ("change", "reason"), [({"descriptors": "/nowhere.desc"}, "No such file"), ({"message": "shop.Nope"}, "shop.Order")]
)
def test_unusable_descriptor_file_is_one_clear_error(
    spark: SparkSession, tmp_path: Path, change: dict[str, str], reason: str
) -> None:
    given = Protobuf(**{"message": "shop.Order", "descriptors": descriptor_file(tmp_path), **change})
    with pytest.raises(InvalidError, match="the descriptor file of a Protobuf decoder cannot be used") as raised:
        kafka_records(spark, [b""], value=given)
    assert reason in str(raised.value)


def test_pipeline_with_protobuf_needs_no_other_spark_package() -> None:
    source = KafkaSource(topics=["t"], bootstrap_servers="h:1", value=Protobuf("shop.Order", "/f"))
    assert source.spark_packages == ("kafka",)
