"""The records of a source whose messages have one binary column of data, such as a stream. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.parsing.bad_rows import bad_rows, text_of
from airflow_provider_streamsem.connectors.parsing.decoded import decode
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.connectors.source import BadRecord, Loaded
from airflow_provider_streamsem.errors import DataError

_DATA, _BAD, _LOCATION, _REASON = (f"__streamsem_{name}" for name in ("data", "bad", "location", "reason"))


class MessageRecords(Loaded):
    """
    The decoded messages of planned ranges: the fields of the data, and then the columns ``own``, prefixed with the name of the system.

    :param value: decoder of the data; ``None``: the messages stay as they were read
    :param location: the columns among ``own`` that locate a bad message in the source
    :param is_empty_null: whether empty data is a null message, whose fields are null
    :param facts: more fields of the location of a bad message
    """

    bad: Column | None
    frame: DataFrame
    drop: tuple[str, ...]

    def __init__(
        self,
        read: DataFrame,
        value: Decoder | None,
        *,
        system: str,
        own: Sequence[str],
        location: Sequence[str],
        is_empty_null: bool = False,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        self._located, self._facts, self._value = location, facts or {}, value
        if value is None:
            self.frame, self.bad, self.drop = read, None, ()
            return
        data = F.expr("nullif(data, X'')") if is_empty_null else F.col("data")
        self._read = read.withColumn(_DATA, data)
        decoded = decode(self._read.drop("data"), _DATA, value, subjects=[], keeps_data=False)
        refuse_reserved(decoded.fields, (f"{system}_{name}" for name in own))
        columns = [*decoded.columns, *(f"{quoted(name)} AS {quoted(f'{system}_{name}')}" for name in own)]
        self.frame = decoded.frame.selectExpr(*columns, f"coalesce({decoded.bad}, false) AS {_BAD}")
        self.bad, self.drop = F.col(_BAD), (_BAD,)

    def bad_records(self) -> Iterator[BadRecord]:
        if self._value is None:
            return
        decoded = decode(self._read, _DATA, self._value, subjects=[])
        located = ", ".join(quoted(name) for name in (*self._located, "data"))
        explained = decoded.frame.selectExpr(
            f"coalesce({decoded.bad}, false) AS {_BAD}",
            f"struct({located}) AS {_LOCATION}",
            f"{decoded.why_bad('the data')} AS {_REASON}",
        )
        selected = [F.col(_LOCATION), F.col(_REASON)]
        for row, reason in bad_rows(explained, F.col(_BAD), selected, reason=_REASON):
            text, encoding = text_of(bytes(row["data"]))
            location = {**self._facts, **{name: row[name] for name in self._located}, "encoding": encoding}
            yield BadRecord(location=location, raw=text, error=reason)


def refuse_reserved(fields: Iterable[str], reserved: Iterable[str]) -> None:
    """Refuse fields with the names of columns that the source adds, without regard to case."""
    names = {*reserved}
    found = sorted({field for field in fields if field.lower() in names})
    if found:
        raise DataError(
            "fields of the records have the names of columns that the source adds",
            fields=found,
        )
