"""Formats of dates and times have the meaning that Spark gives them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from airflow_provider_streamsem.connectors.parsing.exact.time_formats import TimeFormat
from airflow_provider_streamsem.connectors.parsing.parsed import format_names

PATTERNS = [
    "dd/MM/yyyy HH:mm", "yyyyMMdd", "yyyyMMddHHmmss", "d.M.yyyy H:m:s", "yyyy-MM-dd'T'HH:mm:ss.SSS", "yyyy-MM-dd HH:mm:ss[.SSSSSS]", "MM/dd/yy", "dd-MMM-yyyy", "d MMMM yyyy",
    "hh:mm a dd/MM/yyyy", "K:mm a dd/MM/yyyy", "kk:mm dd/MM/yyyy", "yyyy-DDD", "yyyy/MM", "yyyy", "HH:mm", "yyyy-MM-dd''HH", "yyyy-MM-dd HH:mm:ssXXX", "yyyy-MM-dd HH:mm:ssX", "yyyy-MM-dd HH:mm:ssxxx",
    "yyyy-MM-dd HH:mm:ssZ", "yyyy-MM-dd HH:mm:ss VV", "yyyy-MM-dd[ HH:mm][ XXX]",
]  # fmt: skip
TEXTS = [
    "01/07/2024 12:00", "31/12/1999 23:59", "1/7/2024 1:00", "20240229", "20230229", "20240229123059", "29.2.2024 1:2:3", "29.02.2024 01:02:03", "2024-02-29T12:00:00.123", "2024-02-29T12:00:00.1",
    "2024-02-29T12:00:00.1234", "2024-02-29 12:00:00", "2024-02-29 12:00:00.123456", "2024-02-29 12:00:00.5", "02/29/24", "02/29/2024", "29-Feb-2024", "29-FEB-2024", "29-feb-2024", "1 May 2024",
    "1 February 2024", "12:30 AM 01/07/2024", "01:30 pm 01/07/2024", "13:30 PM 01/07/2024", "0:30 PM 01/07/2024", "24:30 01/07/2024", "00:30 01/07/2024", "2024-060", "2023-366", "2024-366", "2024/02", "2024",
    "12024", "02024", "12:30", "2024-02-29'12", "2024-02-29 12:00:00+02:00", "2024-02-29 12:00:00Z", "2024-02-29 12:00:00+02", "2024-02-29 12:00:00+0200", "2024-02-29 12:00:00-0930", "2024-02-29 12:00:00 Europe/Paris",
    "2024-03-31 02:30", "31/03/2024 02:30", "2024-02-29", "2024-02-29 12:00", "2024-02-29 12:00 +02:00", " 20240229", "20240229 ", "", "null", "٢٠٢٤",
]  # fmt: skip


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["date", "timestamp", "timestamp_ntz"])
def test_format_of_the_user_reads_what_spark_reads(spark: SparkSession, kind: str) -> None:
    spark.conf.set("spark.sql.legacy.timeParserPolicy", "CORRECTED")
    option = {"date": "dateFormat", "timestamp": "timestampFormat", "timestamp_ntz": "timestampNTZFormat"}[kind]
    zone = "Europe/Paris" if kind == "timestamp" else None
    frame = spark.createDataFrame([(n, text) for n, text in enumerate(TEXTS)], "n int, text string")
    options = {"sep": "\uffff", "quote": "", "enableDateTimeParsingFallback": "false", "timeZone": "Europe/Paris"}
    number = {"date": "unix_date({})", "timestamp": "unix_micros({})", "timestamp_ntz": "unix_micros(to_utc_timestamp(CAST({} AS TIMESTAMP), current_timezone()))"}[kind]  # fmt: skip
    columns = [
        F.from_csv("text", f"v {kind}", {**options, option: pattern})["v"].alias(f"p{p}")
        for p, pattern in enumerate(PATTERNS)
    ]
    numbers = [f"{number.format(f'p{p}')} AS p{p}" for p in range(len(PATTERNS))]
    rows = frame.select("n", *columns).selectExpr("n", *numbers).orderBy("n").collect()
    different = []
    for p, pattern in enumerate(PATTERNS):
        names = format_names(spark, pattern, "en-US")
        parse = TimeFormat(pattern, is_date=kind == "date", zone=zone, texts=names).parser()
        for text, row in zip(TEXTS, rows, strict=True):
            is_skipped = (
                kind == "timestamp" and "02:30" in text and parse(text) is None
            )  # Spark moves a time that daylight saving time skips
            if text and not is_skipped and parse(text) != row[f"p{p}"]:
                different.append((pattern, text, parse(text), row[f"p{p}"]))
    assert different == []


@pytest.mark.parametrize("pattern", ["yyyy-ww", "EEE d MMM", "yyyy 'open", "yyyy]", "[yyyy", "yyyy yyyy", "QQQ"])
def test_pattern_that_cannot_be_parsed_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match=r"cannot be parsed|not closed|not balanced|twice"):
        TimeFormat(pattern, texts={"MMM": ["Jan"]}).parser()


@pytest.mark.spark
def test_months_have_the_names_of_the_locale(spark: SparkSession) -> None:
    names = format_names(spark, "dd MMMM yyyy", "fr")
    assert TimeFormat("dd MMMM yyyy", is_date=True, texts=names).parser()("29 février 2024") == 19782
