"""Random JSON texts: records of a schema with usual and odd values, and texts that are almost records."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import pyarrow as pa

KINDS: dict[str, pa.DataType] = {
    "l": pa.int64(), "i": pa.int32(), "h": pa.int16(), "b": pa.int8(), "f": pa.float64(), "g": pa.float32(), "d": pa.decimal128(12, 2), "e": pa.decimal128(38, 10),
    "w": pa.decimal128(38, 0), "s": pa.string(), "o": pa.bool_(), "t": pa.timestamp("us", "UTC"), "n": pa.timestamp("us"), "y": pa.date32(), "x": pa.binary(),
}  # fmt: skip
ITEM = pa.struct([("sku", pa.string()), ("price", pa.decimal128(12, 2)), pa.field("count", pa.int32(), nullable=False)])
NESTED: dict[str, pa.DataType] = {
    "r": pa.struct([("a", pa.list_(pa.int64())), ("t", pa.timestamp("us", "UTC")), ("f", pa.float32())]), "items": pa.list_(ITEM),
    "days": pa.list_(pa.list_(pa.date32())),
}  # fmt: skip
_NUMBERS = [
    "0", "-0", "-0.0", "7", "127", "128", "-129", "32768", "2147483648", "9223372036854775807", "9223372036854775808", "12345678901234567890123456789012345678",
    "123456789012345678901234567890123456789", "0.5", "9.99", "9.990", "9.999", "1.000000000000000005", "1e2", "1E+2", "1e-2", "995e-2", "1e38", "1e39", "3.5e38",
    "3.4028235677973366e38", "1.401298464324817e-45", "7e-46", "1e-50", "1e308", "1.8e308", "1e400", "4.9e-324", "2e-324", "1e-400", "0e-400", "1e99999999",
    "1.0", "1.10", "0.1", "12345678901.5", "0.000000000000000000000000000000000000000000000000000001", "00", "01", "1.", ".5", "+1", "1e", "--1", "0x10", "1_0", "NaN",
    "Infinity", "-Infinity", "1" * 330, "0." + "0" * 330 + "1", "1" + "0" * 40 + "e-40",
]  # fmt: skip
_TEXTS = [
    "", " ", "plain", "é☃😀", 'a"b\\c/d\n\t\x00', "\x1f\x7f\u2028", "9.99", "9,99", ".5", "5.", "+1.5", "1e2", " 1", "NaN", "true", "1234", "YWI=", "YWJj", "YW", "YR==", "2024-02-29",
    "2023-02-29", "2024-02-30", "2024-1-1", "2024", "0000-01-01", "9999-12-31", "2024-02-29T12:00:00Z", "2024-02-29 12:00:00+05:30", "2024-02-29T12:00:00.123456Z",
    "2024-02-29T12:00:00.1234567Z", "2024-02-29T12:00:00.100000000Z", "2024-02-29T12:00", "2024-02-29T12", "2024-02-29T12:00:00", "2024-02-29T12:00:00 UTC", "2024-02-29T24:00:00Z",
    "2024-02-29T12:00:00-19:00", "12:00", "null", "[1.0]", '{"a":1.50}',
]  # fmt: skip
_OTHERS = [
    "null", "true", "false", "tru", "nul", "'x'", '"\\ud800"', '"\\udc00\\ud800"', '"\\ud83d\\ude00"', '"\\\\ud800"', '"\\x"', '"\\u12"', '"open', '"tab\t"', '"\x00"', "{}", "[]",
    '{"a": 1.10, "b": [1e5, "1.0", -0]}', "[null]", "[1,]", '{"a"}', "{1:2}", "1 2", "1} {", '1}{"l":2', '1}\x00{"l":2', "1//x", "1/**/", "[" * 300 + "]" * 300, "[" * 1100 + "]" * 1100,
    '{"a":1,"a":2}', "\ufeff1", "\x0b1", "\u00a01",
]  # fmt: skip
_SPACES = ["", "", "", "", " ", "\t", "  ", "\r\n", "\x0b"]


def _number(chance: random.Random) -> str:
    digits = "".join(chance.choice("0123456789") for _ in range(chance.choice([1, 2, 3, 9, 17, 18, 19, 38, 39])))
    digits = digits.lstrip("0") or "0"
    fraction = "." + "".join(chance.choice("0123456789") for _ in range(chance.choice([1, 2, 3, 10, 17])))
    exponent = f"{chance.choice('eE')}{chance.choice(['', '+', '-'])}{chance.choice([0, 1, 2, 10, 45, 300, 324, 400])}"
    sign = chance.choice(["", "-"])
    return sign + digits + chance.choice(["", fraction]) + chance.choice(["", "", "", exponent])


def _text(chance: random.Random) -> str:
    return json.dumps(chance.choice(_TEXTS), ensure_ascii=chance.random() < 0.5)


def _time(chance: random.Random) -> str:
    day = f"{chance.randrange(10_000):04d}-{chance.randrange(14):02d}-{chance.randrange(33):02d}"
    time = f"{chance.choice('T ')}{chance.randrange(25):02d}:{chance.randrange(61):02d}"
    time += chance.choice(["", f":{chance.randrange(61):02d}", f":00.{chance.randrange(10**7)}"])
    return json.dumps(day + chance.choice(["", time + chance.choice(["", "Z", "+01", "-0330", " UTC", "+14:00:01"])]))


def _list(chance: random.Random) -> str:
    return f"[{', '.join(value(chance) for _ in range(chance.randrange(4)))}]"


def _object(chance: random.Random) -> str:
    names = chance.choices([*NESTED, "a", "t", "f", "sku", "price", "count"], k=chance.randrange(4))
    return "{" + ", ".join(f'"{name}": {value(chance)}' for name in names) + "}"


_ANY: list[Callable[[random.Random], str]] = [
    _number, _number, lambda chance: chance.choice(_NUMBERS), _text, _time, lambda chance: chance.choice(_OTHERS), _list, _object,
]  # fmt: skip


def value(chance: random.Random) -> str:
    """Return the text of a random value, which may not be JSON."""
    return chance.choice(_ANY)(chance)


def usual(name: str, chance: random.Random) -> str:
    """Return the text of a value that fits the column of this name."""
    kind = {**KINDS, **NESTED}[name]
    if name == "items":
        items = [
            f'{{"sku": "s{n}", "price": {chance.randrange(1000) / 100}, "count": {n}}}'
            for n in range(chance.randrange(3))
        ]
        return f"[{', '.join(items)}]"
    if name == "r":
        return f'{{"a": [{chance.randrange(9)}], "t": "2024-02-29T12:00:00Z", "f": {chance.random()}}}'
    if name == "days":
        return '[["2024-02-29"], null, []]'
    if pa.types.is_integer(kind):
        return str(chance.randrange(-128, 128))
    if pa.types.is_floating(kind):
        return repr(chance.choice([chance.random(), 0.0, -0.0, 1e-5, chance.random() * 1e30]))
    if pa.types.is_decimal(kind):
        return str(chance.randrange(10**6) if name == "w" else chance.randrange(10**6) / 100)
    if pa.types.is_boolean(kind):
        return chance.choice(["true", "false"])
    return json.dumps(
        {"t": "2024-02-29T12:00:00.5Z", "n": "2024-02-29T12:00:00", "y": "2024-02-28", "x": "YWI="}.get(name, "text")
    )


def record(chance: random.Random, names: list[str], *, odd: float) -> str:
    """
    Return the text of a record.

    :param odd: probability that a value, a name or a space is odd
    """

    def space() -> str:
        return chance.choice(_SPACES) if chance.random() < odd else ""

    parts = []
    for name in names:
        if chance.random() < 0.1:
            continue
        text = value(chance) if chance.random() < odd else usual(name, chance)
        parts.append(f'{space()}"{name}"{space()}:{space()}{text}{space()}')
    if chance.random() < odd:
        parts.append(f'"unknown": {value(chance)}')
    if parts and chance.random() < odd / 4:
        parts.append(chance.choice(parts))
    text = f"{space()}{{{','.join(parts)}}}{space()}"
    return text if chance.random() > odd / 4 else _damaged(chance, text)


def _damaged(chance: random.Random, text: str) -> str:
    """Return a text with a part removed, repeated or replaced."""
    at, length = chance.randrange(len(text) + 1), chance.randrange(4)
    middle = chance.choice(["", text[at : at + 2 * length], chance.choice('{}[]",:\\ 0e.-\n\r\0'), "\n", "}{", "}\n{"])
    return text[:at] + middle + text[at + length :]
