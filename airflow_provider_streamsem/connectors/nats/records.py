"""Reads planned ranges of a NATS stream with Spark, decodes the data and marks bad messages. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors.contract import BadRecord
from airflow_provider_streamsem.connectors.nats.reading import Reading
from airflow_provider_streamsem.connectors.parsing.bad_rows import bad_rows, text_of
from airflow_provider_streamsem.connectors.parsing.decoded import decode
from airflow_provider_streamsem.connectors.parsing.decoders import Decoder
from airflow_provider_streamsem.errors import DataError

COLUMNS = "subject string, sequence long, timestamp timestamp, headers map<string,string>, data binary"
"""The columns of messages, as Spark DDL."""
_OWN = ("subject", "sequence", "timestamp", "headers")
_DATA, _BAD, _LOCATION, _REASON = (f"__streamsem_{name}" for name in ("data", "bad", "location", "reason"))


class NatsRecords:
    """
    The decoded messages of planned ranges. Implements :class:`airflow_provider_streamsem.connectors.contract.Loaded`.

    :param reading: the planned read
    :param value: decoder of the data; ``None``: the data stays binary
    """

    bad: Column | None
    frame: DataFrame
    drop: tuple[str, ...]

    def __init__(self, spark: SparkSession, reading: Reading, *, stream: str, value: Decoder | None) -> None:
        self._stream = stream
        read = _read(spark, reading)
        if value is None:
            self.frame, self.bad, self.drop = read, None, ()
            return
        message = read.withColumn(_DATA, F.expr("nullif(data, X'')"))
        decoded = decode(message, _DATA, value, subjects=[])
        _refuse_reserved_names([*decoded.fields])
        own = [F.col(name).alias(f"nats_{name}") for name in _OWN]
        location = F.struct("subject", "sequence", "data").alias(_LOCATION)
        fields = [column.alias(name) for name, column in decoded.fields.items()]
        bad = F.coalesce(decoded.bad, F.lit(False))
        self.frame = decoded.frame.select(*fields, *own, bad.alias(_BAD), location)
        reason = F.when(bad, decoded.why_bad("the data")).alias(_REASON)
        self._explained = decoded.frame.select(bad.alias(_BAD), location, reason)
        self._unreadable = decoded.unreadable
        self.bad, self.drop = F.col(_BAD), (_BAD, _LOCATION)

    def bad_records(self) -> Iterator[BadRecord]:
        """Yield the bad messages in a second pass over the same ranges."""
        if self.bad is None:
            return
        selected = [F.col(_LOCATION), F.col(_REASON)]
        for row, reason in bad_rows(self._explained, self.bad, selected, reason=_REASON):
            text, encoding = text_of(bytes(row["data"]))
            location = {
                "stream": self._stream, "subject": row["subject"], "sequence": row["sequence"], "encoding": encoding
            }  # fmt: skip
            yield BadRecord(location=location, raw=text, error="; ".join([reason, *self._unreadable]))


def _read(spark: SparkSession, reading: Reading) -> DataFrame:
    """
    Return the messages with the columns of :data:`COLUMNS`. Each part is one Spark task.

    The plan of Spark contains the numbers of the parts. The ranges and credentials are part of the function, which Spark shows nowhere.
    """
    count = len(reading.parts)
    if count == 0:
        return spark.createDataFrame([], COLUMNS)
    return spark.range(0, count, 1, count).mapInArrow(reading.batches, COLUMNS)


def _refuse_reserved_names(names: list[str]) -> None:
    reserved = sorted({name for name in names if name.lower() in {f"nats_{own}" for own in _OWN}})
    if reserved:
        raise DataError(
            "fields of the data have names that are reserved for the columns of NATS; nothing became visible",
            fields=reserved,
        )
