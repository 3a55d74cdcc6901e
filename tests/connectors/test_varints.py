"""The variable-length numbers of Protobuf."""

from __future__ import annotations

import pytest

from airflow_provider_streamsem.connectors.varints import varint


@pytest.mark.parametrize(
    ("data", "number", "end"),
    [(b"\x00", 0, 1), (b"\x7f\x01", 127, 1), (b"\x96\x01\x05", 150, 2), (b"\xff" * 9 + b"\x01", 2**64 - 1, 10)],
)
def test_number_is_read_with_the_position_after_it(data: bytes, number: int, end: int) -> None:
    assert varint(data, 0) == (number, end)
    assert varint(b"\xff" + data, 1) == (number, end + 1)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 10 + b"\x01"])
def test_number_that_is_truncated_or_too_long_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="truncated or too long"):
        varint(data, 0)
