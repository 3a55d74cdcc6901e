"""The harness for a user's pipeline: it runs the production pipeline on the rows of a test, with other locations only."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_streamsem import (
    Avro,
    DeltaSink,
    FilesSink,
    FilesSource,
    IcebergSink,
    JdbcSink,
    Json,
    KafkaSource,
    Limits,
    Pipeline,
    ReplaySource,
    verify,
)
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.errors import DataError, InvalidError
from airflow_provider_streamsem.testing.harness import PipelineHarness
from airflow_provider_streamsem.testing.messages import KafkaMessage

Harness = Callable[..., PipelineHarness]
SCHEMA = (
    "id long, user string, amount decimal(12,2), at timestamp, day date, raw binary, paid boolean, tags array<string>"
)
FULL = {
    "id": 1, "user": 'a "b", \\ ü', "amount": Decimal("9.50"), "at": datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=timezone.utc), "day": date(2026, 1, 2),
    "raw": b"\x00\xff", "paid": True, "tags": ["x", "y"],
}  # fmt: skip
NULLS = dict.fromkeys(FULL)


def files(format: str = "json", **changes: Any) -> Pipeline:
    """Return a production pipeline, whose locations do not exist here."""
    source: dict[str, Any] = {
        "path": "s3://lake/arrivals",
        "format": format,
        "schema": SCHEMA,
        "start_after": "2026",
        **changes.pop("source", {}),
    }
    defaults: dict[str, Any] = {
        "sinks": {"lake": FilesSink("s3://lake/orders")},
        "limits": Limits(max_files=100, min_rows=1_000, max_delay_s=60),
    }
    return Pipeline(
        name="orders", log="s3://lake/_streamsem/orders", source=FilesSource(**source), **{**defaults, **changes}
    )


def kafka(**changes: Any) -> Pipeline:
    source = {
        "topics": ["orders", "returns"],
        "conn_id": "kafka_default",
        "value": Json("id long, user string"),
        **changes.pop("source", {}),
    }
    return Pipeline(
        name="orders", log="s3://lake/_streamsem/orders", source=KafkaSource(**source), sinks={"lake": FilesSink("s3://lake/orders")},
        limits=Limits(max_rows=1_000_000), **changes,
    )  # fmt: skip


def doubled(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "twice": row["id"] * 2} for row in rows]


def without_spark(**changes: Any) -> Pipeline:
    return files(**{"sinks": {"lake": FilesSink("s3://lake/orders", format="json")}, **changes})


class TestWithoutSpark:
    def test_run_returns_only_the_rows_that_it_committed(self, tmp_path: Path) -> None:
        harness = PipelineHarness(without_spark(transform=doubled), tmp_path)
        first = harness.run([{"id": 1}, "{broken", '{"id": 2}'])
        assert first.rows() == first.rows("lake") == [{"id": 1, "twice": 2}, {"id": 2, "twice": 4}]
        assert first.counts == {"read": 3, "parsed": 2, "quarantined": 1, "filtered": 0, "written.lake": 2}
        assert [record["raw"] for record in first.quarantined] == ["{broken"]
        second = harness.run([{"id": 3}], [{"id": 4}])
        assert second.rows() == [{"id": 3, "twice": 6}, {"id": 4, "twice": 8}]
        assert (second.counts["read"], second.quarantined) == (2, [])
        assert (second.since, second.log.head) == (0, 2)
        assert harness.run().rows() == []
        assert verify(harness.pipeline.log).clean

    def test_transform_may_return_different_rows_for_each_sink(self, tmp_path: Path) -> None:
        sinks = {name: FilesSink(f"/data/{name}", format="json") for name in ("low", "high")}

        def split(rows: list[dict[str, int]]) -> dict[str, list[dict[str, int]]]:
            return {"low": [row for row in rows if row["id"] < 2], "high": [row for row in rows if row["id"] > 1]}

        run = PipelineHarness(without_spark(transform=split, sinks=sinks), tmp_path).run(
            [{"id": 1}, {"id": 2}, {"id": 3}]
        )
        assert (run.rows("low"), run.rows("high")) == ([{"id": 1}], [{"id": 2}, {"id": 3}])

    def test_two_harnesses_of_one_pipeline_share_nothing(self, tmp_path: Path) -> None:
        first, second = (PipelineHarness(without_spark(), tmp_path) for _ in range(2))
        first.run([{"id": 1}])
        assert second.run([{"id": 2}]).rows() == [{"id": 2}]

    def test_errors_of_the_run_are_raised_unchanged(self, tmp_path: Path) -> None:
        harness = PipelineHarness(without_spark(limits=Limits(max_quarantined=1)), tmp_path)
        with pytest.raises(DataError):
            harness.run(["{", "{"])

    def test_lines_of_a_replayed_directory_are_those_of_its_files(self, tmp_path: Path) -> None:
        replayed = ReplaySource(path="/arrivals", format="json", schema="id long", start="2026-01-01T00:00:00Z")
        run = PipelineHarness(without_spark().replace(source=replayed), tmp_path).run([{"id": 1}], ["{broken"])
        assert run.rows() == [{"id": 1}]
        assert [record["raw"] for record in run.quarantined] == ["{broken"]

    @pytest.mark.parametrize(
        ("pipeline", "message"),
        [(kafka(), "without Spark"), (files("csv"), "without Spark"), (files("parquet"), "without Spark")],
    )
    def test_source_that_needs_spark_is_refused_without_it(
        self, tmp_path: Path, pipeline: Pipeline, message: str
    ) -> None:
        with pytest.raises(InvalidError, match=message):
            PipelineHarness(pipeline, tmp_path)

    @pytest.mark.parametrize(
        "changes", [{"where": "id > 1"}, {"sinks": {"lake": FilesSink("/o")}}, {"sinks": {"lake": FilesSink("/o", format="json", partition_by=["id"])}}]
    )  # fmt: skip
    def test_features_that_need_spark_are_refused_without_it(self, tmp_path: Path, changes: dict[str, Any]) -> None:
        with pytest.raises(InvalidError, match="without Spark"):
            PipelineHarness(without_spark(**changes), tmp_path).run([{"id": 1}])

    @pytest.mark.parametrize(
        "rows", [{"id": 1}, "text", [5], [{"id": object()}]], ids=["map", "text", "numbers", "objects"]
    )
    def test_invalid_rows_are_refused(self, tmp_path: Path, rows: Any) -> None:
        with pytest.raises(InvalidError):
            PipelineHarness(without_spark(), tmp_path).run(rows)

    def test_sink_that_cannot_be_relocated_is_refused(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from airflow_provider_streamsem import registry

        @dataclass(frozen=True)
        class OtherSink(Sink):
            delivery, reasons, location, format = "exactly_once", (), "/o", "json"

            def immutable_config(self) -> dict[str, str]:
                return {}

        OtherSink.__abstractmethods__ = frozenset()  # the harness calls none of them

        monkeypatch.setattr(registry, "name_of", lambda kind, value: "other")
        with pytest.raises(InvalidError, match=r"lake.*OtherSink"):
            PipelineHarness(without_spark().replace(sinks={"lake": OtherSink()}), tmp_path)

    @pytest.mark.parametrize(
        "sink",
        [DeltaSink("/o"), IcebergSink("/o", "lake.orders"), JdbcSink("db", "orders", "/o")],
        ids=["delta", "iceberg", "jdbc"],
    )
    def test_sink_outside_the_log_is_refused_because_it_would_publish(self, tmp_path: Path, sink: Any) -> None:
        with pytest.raises(InvalidError, match=r"outside the log.*nothing was written.*lake"):
            PipelineHarness(without_spark(sinks={"lake": sink}), tmp_path)

    def test_logs_may_be_on_s3(self, tmp_path: Path, streamsem_log: str) -> None:
        harness = PipelineHarness(without_spark(), tmp_path, log=streamsem_log)
        assert harness.run([{"id": 1}]).rows() == [{"id": 1}]
        assert harness.pipeline.log.startswith(streamsem_log)


@pytest.mark.spark
class TestFilesOnSpark:
    @pytest.mark.parametrize("format", ["json", "parquet", "orc"])
    def test_rows_reach_the_transform_with_the_types_of_the_schema(
        self, streamsem_harness: Harness, format: str
    ) -> None:
        schemas: list[str] = []

        def transform(frame: DataFrame) -> DataFrame:
            schemas.append(frame.schema.simpleString())
            return frame

        run = streamsem_harness(files(format, transform=transform)).run([FULL, NULLS])
        assert sorted(run.rows(), key=lambda row: row["id"] or 0) == [NULLS, FULL]
        assert schemas == [
            "struct<id:bigint,user:string,amount:decimal(12,2),at:timestamp,day:date,raw:binary,paid:boolean,tags:array<string>>"
        ]

    @pytest.mark.parametrize(
        "options",
        [
            {"header": "true"}, {"sep": ";", "nullValue": "NA"}, {"quote": "'", "escape": "'", "Header": "TRUE"}, {"delimiter": "\t", "escape": '"'},
        ],
    )  # fmt: skip
    def test_rows_of_csv_are_read_back_unchanged(self, streamsem_harness: Harness, options: dict[str, str]) -> None:
        schema = "id long, user string, amount decimal(12,2), at timestamp, day date, paid boolean"
        full_row = {name: value for name, value in FULL.items() if name not in ("raw", "tags")}
        rows = [full_row, {**dict.fromkeys(full_row), "id": 2}]
        rows += [
            {**full_row, "id": n, "user": user}
            for n, user in enumerate(['"', "'", ",;\t", "\\", '\\"', "a\\'", "a\"b'c", "ü"], 3)
        ]
        run = streamsem_harness(files("csv", source={"schema": schema, "options": options})).run(
            [*rows, "not a row of this"]
        )
        assert sorted(run.rows(), key=lambda row: row["id"]) == rows
        assert [record["raw"] for record in run.quarantined] == ["not a row of this"]

    def test_rows_of_a_text_source_are_lines_or_mappings(self, streamsem_harness: Harness) -> None:
        run = streamsem_harness(files("text", source={"schema": None})).run(["one", {"value": "two"}, b"three"])
        assert sorted(row["value"] for row in run.rows()) == ["one", "three", "two"]

    def test_predicate_and_quarantine_of_the_pipeline_apply(self, streamsem_harness: Harness) -> None:
        run = streamsem_harness(files(where="id > 1", rows="filter")).run([{"id": 1}, {"id": 2}, '{"id": "x"}'])
        assert run.counts == {"read": 3, "parsed": 2, "quarantined": 1, "filtered": 1, "written.lake": 1}
        assert run.frame().count() == 1

    @pytest.mark.parametrize("format", ["json", "csv", "parquet"])
    def test_column_that_the_source_does_not_have_is_refused(self, streamsem_harness: Harness, format: str) -> None:
        with pytest.raises(InvalidError, match="ammount"):
            streamsem_harness(files(format)).run([{"id": 1, "ammount": 5}])

    def test_raw_text_is_refused_for_columnar_formats(self, streamsem_harness: Harness) -> None:
        with pytest.raises(InvalidError, match="mapping"):
            streamsem_harness(files("parquet")).run(["x"])

    @pytest.mark.parametrize("format", ["json", "parquet"])
    def test_data_frames_are_accepted_as_rows(
        self, streamsem_harness: Harness, spark: SparkSession, format: str
    ) -> None:
        import pandas
        import pyarrow

        harness = streamsem_harness(files(format))
        spark_frame = spark.sql(
            "select 1L id, 'a' user, cast(9.5 as decimal(12,2)) amount, timestamp '2026-01-02 03:04:05' at"
        )
        table = pyarrow.table({"id": [2], "user": ["b"]})
        for n, frame in enumerate((spark_frame, table, pandas.DataFrame({"id": [3], "user": ["c"]})), 1):
            assert [(row["id"], row["user"]) for row in harness.run(frame).rows()] == [(n, "abc"[n - 1])]

    def test_source_of_an_unknown_kind_has_typed_columns(
        self, streamsem_harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from airflow_provider_streamsem import registry

        @dataclass
        class Elsewhere(Source):
            delivery, unit, limits, reasons, spark_packages = "exactly_once", "rows", ("max_rows",), (), ()

            def immutable_config(self) -> dict[str, str]:
                return {}

            def unused(self, *arguments: Any) -> Any:
                raise NotImplementedError

            lineage = initial_offsets = open = read_pins = check_pins = load = unused

        real = registry.name_of
        monkeypatch.setattr(
            registry, "name_of", lambda kind, value: "x" if isinstance(value, Elsewhere) else real(kind, value)
        )
        pipeline = files().replace(source=Elsewhere(), limits=Limits())
        assert streamsem_harness(pipeline).run([{"id": 1, "at": FULL["at"]}]).rows() == [{"id": 1, "at": FULL["at"]}]

    def test_quickstart_pipeline_of_the_dags_folder_is_tested_unchanged(
        self, streamsem_harness: Harness, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
        from streamsem_quickstart import FLIGHTS

        flight = {
            "year": 2013,
            "month": 1,
            "day": 1,
            "dep_time": 517,
            "carrier": "UA",
            "flight": 1545,
            "tailnum": "N14228",
        }
        run = streamsem_harness(FLIGHTS).run([flight, {**flight, "dep_time": None}])
        assert [(row["carrier"], row["dep_time"]) for row in run.rows()] == [("UA", 517)]
        assert run.counts["filtered"] == 1


@pytest.mark.spark
class TestKafkaOnSpark:
    def test_mapping_is_a_row_with_the_columns_of_the_transform(self, streamsem_harness: Harness) -> None:
        full_row = {"id": 1, "user": "ann", "kafka_topic": "returns", "kafka_partition": 3, "kafka_offset": 42, "kafka_key": "k", "kafka_timestamp": FULL["at"],
                 "kafka_headers": [("trace", b"\x01")]}  # fmt: skip
        run = streamsem_harness(kafka()).run([full_row, {"id": 2}])
        first, second = sorted(run.rows(), key=lambda row: row["id"])
        assert first == {**full_row, "kafka_key": b"k", "kafka_headers": [{"key": "trace", "value": b"\x01"}]}
        assert (second["user"], second["kafka_topic"], second["kafka_partition"], second["kafka_offset"]) == (
            None,
            "orders",
            0,
            0,
        )
        assert (second["kafka_key"], second["kafka_headers"]) == (None, None)

    def test_row_received_by_a_transform_is_accepted_as_input(self, streamsem_harness: Harness) -> None:
        pipeline = kafka(source={"value": Json("id long, key string, topic string")})
        first_row = {
            "id": 1,
            "key": "in the value",
            "topic": "too",
            "kafka_key": "k",
            "kafka_offset": 7,
            "kafka_headers": [("a", b"b")],
        }
        (row,) = streamsem_harness(pipeline).run([first_row]).rows()
        assert (row["key"], row["topic"], row["kafka_key"], row["kafka_topic"]) == (
            "in the value",
            "too",
            b"k",
            "orders",
        )
        assert streamsem_harness(pipeline).run([row]).rows() == [row]

    def test_offsets_of_a_partition_continue_from_batch_to_batch(self, streamsem_harness: Harness) -> None:
        harness = streamsem_harness(kafka())
        harness.run([{"id": 1}, {"id": 2, "kafka_partition": 1}])
        run = harness.run([{"id": 3}, {"id": 4, "kafka_partition": 1}, {"id": 5}])
        assert {row["id"]: row["kafka_offset"] for row in run.rows()} == {3: 1, 4: 1, 5: 2}

    def test_value_that_cannot_be_decoded_is_quarantined_with_its_offset_as_from_kafka(
        self, streamsem_harness: Harness
    ) -> None:
        run = streamsem_harness(kafka()).run(
            ["{broken", {"id": 1}, b"\xff", KafkaMessage(value="[]", topic="returns", partition=2, offset=7, key="k")]
        )
        assert [row["id"] for row in run.rows()] == [1]
        locations = {
            (r["topic"], r["partition"], r["offset"], r["raw"], r["encoding"], r["key"]) for r in run.quarantined
        }
        assert locations == {
            ("orders", 0, 0, "{broken", "utf-8", ""), ("orders", 0, 2, "/w==", "base64", ""), ("returns", 2, 7, "[]", "utf-8", "k"),
        }  # fmt: skip

    def test_value_with_a_schema_id_is_decoded_and_one_without_is_quarantined(self, streamsem_harness: Harness) -> None:
        decoder = Json("id long, user string", has_schema_id=True)
        run = streamsem_harness(kafka(source={"value": decoder})).run(
            [{"id": 1}, b"\0\0\0\1\7" + b'{"id": 2}', '{"id": 3}', b"\0\0\0", b"\0\0\0\0\1", KafkaMessage(value=None)]
        )
        assert sorted((row["kafka_offset"], row["id"]) for row in run.rows()) == [(0, 1), (1, 2), (5, None)]
        assert sorted(record["offset"] for record in run.quarantined) == [2, 3, 4]

    def test_tombstone_has_null_fields(self, streamsem_harness: Harness) -> None:
        run = streamsem_harness(kafka()).run([KafkaMessage(value=None, key="deleted")])
        assert [(row["id"], row["kafka_key"]) for row in run.rows()] == [(None, b"deleted")]

    def test_rows_without_a_decoder_are_kafka_columns(self, streamsem_harness: Harness) -> None:
        run = streamsem_harness(kafka(source={"value": None})).run(
            [{"value": b"\x00", "key": "k", "offset": 9}, "text"]
        )
        rows = sorted(run.rows(), key=lambda row: row["offset"])
        assert [(r["topic"], r["offset"], r["key"], r["value"]) for r in rows] == [
            ("orders", 9, b"k", b"\x00"),
            ("orders", 10, None, b"text"),
        ]
        assert list(rows[0]) == ["topic", "partition", "offset", "timestamp", "headers", "key", "value"]

    def test_decoded_key_may_be_a_mapping_of_its_fields(self, streamsem_harness: Harness) -> None:
        run = streamsem_harness(kafka(source={"key": Json("shop int")})).run([{"id": 1, "kafka_key": {"shop": 5}}])
        assert [row["kafka_key"] for row in run.rows()] == [{"shop": 5}]

    @pytest.mark.parametrize(
        ("source", "row", "message"),
        [
            ({"value": None}, {"id": 1}, "id"), ({}, {"id": 1, "kafka_topic": "other"}, "other"), ({"topics": [], "topic_pattern": "o.*"}, {"id": 1}, "topic"),
            ({}, 5, "KafkaMessage"), ({}, {"id": 1, "kafka_key": {"shop": 5}}, "key"), ({}, {"id": 1, "usr": "x"}, "usr"),
            ({"value": Avro('{"type": "record", "name": "O", "fields": []}')}, {"id": 1}, "Json"),
        ],
    )  # fmt: skip
    def test_row_that_is_not_a_valid_message_is_refused(
        self, streamsem_harness: Harness, source: dict[str, Any], row: Any, message: str
    ) -> None:
        with pytest.raises(InvalidError, match=message):
            streamsem_harness(kafka(source=source)).run([row])
