"""Reads the variable-length numbers of Protobuf. Needs only the standard library, because executors run this module."""

from __future__ import annotations


def varint(data: bytes, at: int, most_bytes: int = 10) -> tuple[int, int]:
    """Return the unsigned number at a position, and the position after it. A truncated or longer number raises ``ValueError``."""
    value = 0
    for n, byte in enumerate(data[at : at + most_bytes]):
        value |= (byte & 0x7F) << (7 * n)
        if byte < 0x80:
            return value, at + n + 1
    raise ValueError("a number is truncated or too long")
