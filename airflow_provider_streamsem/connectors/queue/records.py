"""Reads landed messages with Spark, parses their bodies and marks bad messages. Imports pyspark, so only engines import this module."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors.data_files import ordered
from airflow_provider_streamsem.connectors.files.text_lines import PATH, RAW, plain_path
from airflow_provider_streamsem.connectors.parsing import parsed as parsing
from airflow_provider_streamsem.connectors.parsing.bad_rows import bad_rows
from airflow_provider_streamsem.connectors.parsing.message_records import refuse_reserved
from airflow_provider_streamsem.connectors.source import BadRecord, Loaded

_LANDED = "id string, received_ms long, body string, encoding string, headers map<string,string>"
_OWN = ("queue_message_id", "queue_received_at", "queue_headers")
_MESSAGE, _RECORD, _BAD = "__streamsem_message", "__streamsem_record", "__streamsem_bad"
_IS_MESSAGE, _BODY, _REASON = "__streamsem_is_message", "__streamsem_body", "__streamsem_reason"


class QueueRecords(Loaded):
    """
    The parsed messages of landed files. ``schema`` is Spark DDL of a JSON body; ``None``: the body is text.

    :param located: URLs of the landed files, in Spark's form
    :param ordered_paths: the paths of the files, below ``plain_root``, in whose order the messages are sorted; empty: they are not sorted
    """

    bad: Column | None
    frame: DataFrame
    drop: tuple[str, ...]

    def __init__(
        self,
        spark: SparkSession,
        located: Sequence[str],
        *,
        schema: str | None,
        options: Mapping[str, str],
        ordered_paths: Sequence[str],
    ) -> None:
        self._error = (
            "not a message with an id and "
            + ("a body in UTF-8" if schema is None else f"a body of the schema {schema}")
        )  # fmt: skip
        if located:
            lines = spark.read.options(ignoreCorruptFiles="false", ignoreMissingFiles="false").text(list(located))
            own_columns = [F.col("value").alias(RAW), F.col("_metadata.file_path").alias(PATH)]
            lines = lines.select(*own_columns, *(ordered.position() if ordered_paths else []))
        else:
            lines = spark.createDataFrame([], f"{RAW} string, {PATH} string")
        self._lines, self._options = lines, options
        self._columns = None if schema is None else parsing.struct(schema, "source queue")
        names = ["body"] if self._columns is None else self._columns.names
        refuse_reserved(names, _OWN)
        message = F.col(_MESSAGE)
        own = [
            message["id"].alias("queue_message_id"),
            F.timestamp_millis(message["received_ms"]).alias("queue_received_at"),
            message["headers"].alias("queue_headers"),
        ]
        positions = ordered.POSITION if ordered_paths else ()
        parsed, fields, bad, _ = self._parsed(*own, *positions)
        self.frame = parsed.select(*fields, *_OWN, bad.alias(_BAD), *positions)
        self.frame = ordered.in_order(self.frame, ordered_paths) if ordered_paths else self.frame
        self.bad, self.drop = F.col(_BAD), (_BAD,)

    def _parsed(self, *kept: Column | str) -> tuple[DataFrame, list[Column], Column, Column]:
        """``kept`` are more columns of the result. Return the frame, the fields of a body, whether a message is bad, and why."""
        message = F.from_json(RAW, _LANDED)
        is_message = F.expr(
            f"{_MESSAGE}.id IS NOT NULL AND {_MESSAGE}.body IS NOT NULL AND {_MESSAGE}.encoding IS NULL"
        )
        columns = [is_message.alias(_IS_MESSAGE), F.col(_MESSAGE)["body"].alias(_BODY), *kept]
        landed = self._lines.withColumn(_MESSAGE, message).select(*columns)
        is_bad = ~F.coalesce(F.col(_IS_MESSAGE), F.lit(False))
        if self._columns is None:
            return landed, [F.col(_BODY).alias("body")], is_bad, F.lit("")
        records = parsing.records_of_json(landed.sparkSession, self._columns, self._options)
        parsed = records.parsed(landed, _BODY, into=_RECORD)
        fields = [F.expr(column) for column in parsed.columns]
        return parsed.frame, fields, is_bad | F.expr(parsed.bad), F.col(parsed.reason)

    def bad_records(self) -> Iterator[BadRecord]:
        parsed, _, bad, reason = self._parsed(RAW, PATH, _MESSAGE)
        explained = parsed.select(bad.alias(_BAD), RAW, PATH, _MESSAGE, F.when(bad, reason).alias(_REASON))
        selected = [F.col(name) for name in (PATH, RAW, _MESSAGE, _REASON)]
        for path, line, message, reason in bad_rows(explained, F.col(_BAD), selected, reason=_REASON):
            is_message = message is not None and message["body"] is not None
            location = {
                "path": plain_path(path),
                "message_id": (message["id"] or "") if is_message else "",
                "encoding": (message["encoding"] or "utf-8") if is_message else "utf-8",
            }
            error = f"the body does not fit the schema: {reason}" if is_message and reason else self._error
            yield BadRecord(location=location, raw=message["body"] if is_message else line, error=error)
