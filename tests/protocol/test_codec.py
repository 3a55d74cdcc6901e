"""Encoding and decoding of entries: canonical bytes, equal values after decoding, and errors that name the cause."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_provider_streamsem.errors import LogDamagedError, NewerFormatError
from airflow_provider_streamsem.protocol import codec
from airflow_provider_streamsem.protocol.entries import (
    Claim,
    Committable,
    Discovery,
    Effects,
    Outcome,
    PipelineRecord,
    Plan,
    Receipts,
    RunPointer,
    Segment,
    StagedManifest,
)
from tests.protocol import samples

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def edited(data: bytes, change: dict[str, Any], *, seal: bool = True) -> bytes:
    """The bytes of an entry with changed fields (``...`` removes one), with a matching checksum if ``seal``."""
    body = json.loads(data)
    body.update(change)
    body = {name: value for name, value in body.items() if value is not ...}
    if seal:
        body.pop("checksum", None)
        body["checksum"] = codec.sha256(codec.canonical(body))
    return codec.canonical(body)


@pytest.mark.parametrize("entry", [samples.plan(), samples.outcome(samples.plan()), samples.manifest(samples.plan())])
def test_decoded_entry_equals_the_encoded_entry(entry: Any) -> None:
    encoded = codec.encode(entry)
    assert codec.decode(type(entry), "k", encoded.data) == entry
    assert encoded.spills == {}
    assert encoded.data == codec.canonical(json.loads(encoded.data))


@given(JSON, st.dictionaries(st.text(max_size=5), st.integers(0, 10**15), max_size=3))
def test_decoded_pins_and_targets_equal_the_encoded_ones(pins: Any, target: dict[str, int]) -> None:
    entry = samples.plan(pins=pins, target=target)
    assert codec.decode(Plan, "k", codec.encode(entry).data) == entry


@given(JSON)
def test_W2_canonical_json_is_a_function_of_the_value(value: Any) -> None:
    assert codec.canonical(json.loads(codec.canonical(value))) == codec.canonical(value)


@pytest.mark.parametrize("value", [1.5, {"a": [float("nan")]}, (0.0,)])
def test_W2_floats_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="float"):
        codec.canonical(value)


def test_W4_large_fields_are_spilled_under_their_sha256_and_decoded_with_the_entry() -> None:
    pins = [["x" * 100, n, "mtime:1"] for n in range(1000)]
    entry = samples.plan(pins=pins)
    encoded = codec.encode(entry)
    ((key, part),) = encoded.spills.items()
    assert len(encoded.data) < 2_000
    assert key == f"spill/{codec.sha256(part)}.json"
    body = codec.parse(Plan, "k", encoded.data)
    assert codec.spilled(Plan, body) == {"pins": codec.sha256(part)}
    assert codec.decode(Plan, "k", encoded.data, {"pins": part}) == entry
    with pytest.raises(LogDamagedError, match="spilled field"):
        codec.decode(Plan, "k", encoded.data)
    with pytest.raises(LogDamagedError, match="spilled field"):
        codec.decode(Plan, "k", encoded.data, {"pins": part + b" "})


def test_equal_field_of_two_entries_is_spilled_once() -> None:
    schemas = {"out": "x" * 70_000}
    of = samples.plan()
    assert (
        codec.encode(samples.manifest(of, schemas=schemas)).spills
        == codec.encode(samples.outcome(of, schemas=schemas)).spills
    )


def test_R2_newer_format_is_refused() -> None:
    with pytest.raises(NewerFormatError, match="upgrade"):
        codec.decode(Plan, "k", edited(codec.encode(samples.plan()).data, {"format": 2}))


def test_R2_unknown_fields_are_ignored() -> None:
    entry = samples.plan()
    assert codec.decode(Plan, "k", edited(codec.encode(entry).data, {"new_field": {"x": 1}})) == entry


@pytest.mark.parametrize(("cls", "entry", "change"), [
    (Plan, samples.plan(), {"work": {"kind": "gap"}}),
    (Plan, samples.plan(), {"work": {"kind": ["batch"]}}),
    (Outcome, samples.outcome(samples.plan()), {"result": "perhaps"}),
])  # fmt: skip
def test_R2_unknown_kinds_and_results_are_refused(cls: Any, entry: Any, change: dict[str, str]) -> None:
    with pytest.raises(NewerFormatError, match="does not know"):
        codec.decode(cls, "k", edited(codec.encode(entry).data, change))


def test_R3_edited_entry_fails_its_checksum() -> None:
    with pytest.raises(LogDamagedError, match="checksum"):
        codec.decode(Plan, "k", edited(codec.encode(samples.plan()).data, {"version": 1}, seal=False))


def test_optional_fields_may_be_absent() -> None:
    body = json.loads(codec.encode(samples.plan()).data)
    data = edited(
        codec.encode(samples.plan()).data, {name: ... for name in ("kind", "target", "state", "gaps") if name in body}
    )
    assert codec.decode(Plan, "k", data) == samples.plan()


@pytest.mark.parametrize("change", [
    {"version": "0"}, {"version": True}, {"ranges": {"files": [0]}}, {"ranges": {"files": [0, "1"]}}, {"ranges": [0, 1]}, {"run_key": None},
    {"target": []}, {"j": ...}, {"nonce": 5},
], ids=str)  # fmt: skip
def test_field_of_a_wrong_type_is_reported_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(LogDamagedError) as caught:
        codec.decode(Plan, "k", edited(codec.encode(samples.plan()).data, change))
    assert next(iter(change)) in str(caught.value)


def test_nested_record_of_a_wrong_type_is_reported_by_name() -> None:
    data = edited(codec.encode(samples.outcome(samples.plan())).data, {"quarantine": 3})
    with pytest.raises(LogDamagedError, match="quarantine"):
        codec.decode(Outcome, "k", data)


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"a":1}', b'"x"', b'{"format":"1"}', b"\xff\xfe"])
def test_bytes_that_are_not_an_entry_are_reported_with_their_key(data: bytes) -> None:
    with pytest.raises(LogDamagedError, match="key='k'"):
        codec.decode(Plan, "k", data)


def test_float_in_an_entry_is_damage() -> None:
    with pytest.raises(LogDamagedError, match="canonical"):
        codec.decode(Plan, "k", b'{"format":1,"entry":"plan","x":1.5,"checksum":"0"}')


def test_entry_of_a_wrong_kind_is_damage() -> None:
    with pytest.raises(LogDamagedError, match="wrong kind"):
        codec.decode(StagedManifest, "k", codec.encode(samples.plan()).data)


def test_entry_kinds_are_distinct() -> None:
    kinds = [cls.entry for cls in (PipelineRecord, Plan, StagedManifest, Outcome, Segment)]
    assert len(set(kinds)) == len(kinds)


def nested(levels: int) -> str:
    return "[" * levels + "1" + "]" * levels


@pytest.mark.parametrize("levels", [codec.MAX_NESTING + 1, 900, 100_000])
def test_stored_json_that_is_nested_too_deep_is_damage(levels: int) -> None:
    deep = nested(levels)
    for cls in (
        PipelineRecord,
        Plan,
        StagedManifest,
        Outcome,
        Receipts,
        Claim,
        Effects,
        RunPointer,
        Segment,
        Discovery,
    ):
        with pytest.raises(LogDamagedError):
            codec.parse(cls, "k", f'{{"entry":"{cls.entry}","format":1,"x":{deep}}}'.encode())
    with pytest.raises(LogDamagedError, match="nested too deep"):
        codec.read_json(deep, "k")


def test_nested_spill_schema_and_bounds_are_damage() -> None:
    plan = samples.plan()
    deep = nested(2_000)
    body = json.loads(codec.encode(plan).data)
    spilled = {**body, "pins": {"$spill": codec.sha256(deep.encode()), "bytes": len(deep)}}
    with pytest.raises(LogDamagedError, match="nested too deep"):
        codec.decode(Plan, "k", edited(codec.canonical(spilled), {}), {"pins": deep.encode()})
    sinks = {"out": Committable(format="parquet", rows=2, files=(samples.file(stats=deep),))}
    for change in ({"schemas": {"out": deep}}, {"sinks": sinks}):
        with pytest.raises(LogDamagedError, match="nested too deep"):
            codec.decode(Outcome, "k", codec.encode(samples.outcome(plan, **change)).data)


def test_json_at_the_nesting_limit_is_decoded() -> None:
    pins = json.loads(nested(codec.MAX_NESTING - 1))
    assert codec.decode(Plan, "k", codec.encode(samples.plan(pins=pins)).data).pins == pins
    wide = json.dumps([[i] for i in range(1_000)])
    entry = samples.outcome(samples.plan(), schemas={"out": wide})
    assert codec.decode(Outcome, "k", codec.encode(entry).data) == entry
    with pytest.raises(ValueError, match="nested deeper"):
        codec.encode(samples.plan(pins=[pins]))


ANY_TEXT = st.text(st.characters() | st.characters(categories=["Cs"]) | st.sampled_from("\U0001f600\\u"), max_size=5)
ANY_JSON = st.recursive(
    st.none() | st.integers() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)


def is_utf8(value: Any) -> bool:
    try:
        return bool(json.dumps(value, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        return False


@given(ANY_JSON, st.booleans())
def test_stored_json_is_read_unchanged_or_refused_because_utf8_cannot_encode_it(value: Any, escapes: bool) -> None:
    stored = json.dumps(value, ensure_ascii=escapes).encode(errors="surrogatepass")
    if is_utf8(value):
        assert codec.read_json(stored, "k") == value
    elif (found := json.loads(json.dumps(value))) != value and is_utf8(found) and escapes:
        assert codec.read_json(stored, "k") == found, "the escapes of two surrogates are one character"
    else:
        with pytest.raises(LogDamagedError, match="not valid JSON"):
            codec.read_json(stored, "k")


@given(st.dictionaries(ANY_TEXT, ANY_JSON, max_size=3))
def test_lines_of_any_record_can_be_written_as_utf8(record: dict[str, Any]) -> None:
    (found,) = codec.lines("k", json.dumps(record).encode())
    assert is_utf8(found)
    if is_utf8(record):
        assert found == record


@pytest.mark.parametrize(
    "stored", [b'{"a":"\\ud800"}', b'{"\\uDfff":1}', b'{"a":"\xed\xa0\x80"}', '{"a":1}'.encode("utf-16")]
)
def test_json_with_a_text_that_is_not_utf8_is_refused(stored: bytes) -> None:
    with pytest.raises(LogDamagedError, match="not valid JSON"):
        codec.read_json(stored, "k")


def test_lone_surrogate_in_a_quarantined_record_is_escaped() -> None:
    assert codec.lines("k", b'{"raw":"a\\ud800b"}\n') == [{"raw": "a\\ud800b"}]
