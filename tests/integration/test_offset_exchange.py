"""A pipeline continues a Structured Streaming query and a consumer group, and they continue the pipeline. Each record is read once."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Pipeline
from airflow_provider_streamsem.cli.main import main
from airflow_provider_streamsem.protocol.codec import plain
from airflow_provider_streamsem.testing.rows import RowsEngine
from airflow_provider_streamsem.testing.stores import Crash
from tests.integration.parts.kafka import Broker
from tests.integration.topics import TIMEOUT_S, Topics

pytestmark = pytest.mark.integration


@pytest.fixture
def topics(broker: Broker, spark: SparkSession, tmp_path: Path) -> Topics:
    topics = Topics(broker, tmp_path)
    topics.create("a", 2)
    return topics


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "structured-streaming.md"


def documented(option: str) -> list[list[str]]:
    """Return the commands of the page with an option, each without the program, the pipeline and the value of the option."""
    lines = re.findall(r"^ *(streamsem .*)$", PAGE.read_text(), re.MULTILINE)
    commands = [shlex.split(line) for line in lines if f" {option} " in line]
    return [[command[1], *command[3:-1]] for command in commands]


def put(topics: Topics, first: int, last: int) -> None:
    for partition in (0, 1):
        topics.put("a", [f"{partition}:{n}" for n in range(first, last)], partition=partition)


def expected(first: int, last: int) -> list[str]:
    return sorted(f"{partition}:{n}" for partition in (0, 1) for n in range(first, last))


def command(capsys: pytest.CaptureFixture[str], topics: Topics, spec: Pipeline, *argv: str) -> tuple[int, Any]:
    """Run a command with the pipeline in a TOML file."""
    file = topics.location / "orders.py"
    file.write_text(
        f"import json\nfrom airflow_provider_streamsem.pipeline.spec.pipeline import from_json\nP = from_json(json.loads({json.dumps(plain(spec.without_transform()))!r}))\n"
    )
    capsys.readouterr()
    code = main([argv[0], f"{file}:P", *argv[1:], "--json"])
    return code, json.loads(capsys.readouterr().out)


def queried(spark: SparkSession, topics: Topics, checkpoint: Path) -> list[str]:
    """Run a query on the topic until its end, and return the values that it read."""
    read: list[str] = []
    stream = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", topics.broker.bootstrap)
        .option("subscribe", topics.name("a"))
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 7)
        .load()
        .selectExpr("CAST(value AS STRING) AS value")
    )
    query = (
        stream.writeStream.foreachBatch(lambda frame, _: read.extend(row["value"] for row in frame.collect()))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return sorted(read)


def test_pipeline_continues_a_query_and_a_query_continues_the_pipeline(
    topics: Topics, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    put(topics, 0, 10)
    assert queried(spark, topics, topics.location / "before") == expected(0, 10)
    put(topics, 10, 20)
    imports, exports = documented("--checkpoint")
    code, found = command(capsys, topics, topics.pipeline("a"), *imports, str(topics.location / "before"))
    assert (code, found["starting"]) == (0, {f"{topics.name('a')}-{p}": 10 for p in (0, 1)})
    spec = topics.pipeline("a", source={"starting": found["starting"]})
    topics.run(spec, "first")
    assert sorted(value for (value,) in topics.rows()) == expected(10, 20)
    put(topics, 20, 25)
    after = topics.location / "after"
    code, written = command(capsys, topics, spec, *exports, str(after))
    assert (code, written["version"]) == (0, 0)
    assert queried(spark, topics, after) == expected(20, 25)
    put(topics, 25, 27)
    assert queried(spark, topics, after) == expected(25, 27)


def consumer_of(topics: Topics, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": topics.broker.bootstrap,
            "group.id": group,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
        }
    )


def test_pipeline_continues_a_consumer_group_and_the_group_continues_the_pipeline(
    topics: Topics, capsys: pytest.CaptureFixture[str]
) -> None:
    put(topics, 0, 10)
    group, name = f"{topics.prefix}-group", topics.name("a")
    imports, exports = documented("--group")
    code, refused = command(capsys, topics, topics.pipeline("a"), *imports, group)
    assert (code, "no committed offset" in refused["message"]) == (2, True)
    consumer = consumer_of(topics, group)
    consumer.commit(offsets=[TopicPartition(name, p, 4 + p) for p in (0, 1)], asynchronous=False)
    consumer.close()
    _, found = command(capsys, topics, topics.pipeline("a"), *imports, group)
    assert found["starting"] == {f"{name}-0": 4, f"{name}-1": 5}
    spec = topics.pipeline("a", source={"starting": found["starting"]})
    topics.run(spec, "first")
    assert len(topics.rows()) == 6 + 5
    assert command(capsys, topics, spec, *exports, group)[0] == 0
    consumer = consumer_of(topics, group)
    stored = consumer.committed([TopicPartition(name, p) for p in (0, 1)], timeout=TIMEOUT_S)
    assert [tp.offset for tp in stored] == [10, 10]
    consumer.subscribe([name])
    topics.until(lambda: consumer.poll(0.5) is None and len(consumer.assignment()) == 2)
    code, refused = command(capsys, topics, spec, *exports, group)
    assert (code, "did not accept the offsets of some partitions" in refused["message"]) == (4, True)
    code, refused = command(capsys, topics, spec, *imports, group)
    assert (code, "has members" in refused["message"]) == (4, True)
    consumer.close()


def test_offsets_of_an_open_version_are_not_exported(topics: Topics, capsys: pytest.CaptureFixture[str]) -> None:
    put(topics, 0, 3)
    spec = topics.pipeline("a")

    class Dies(RowsEngine):
        def stage(self, job: object, log: object) -> object:  # type: ignore[override]
            raise Crash

    with pytest.raises(Crash):
        topics.run(spec, "first", engine=Dies())
    code, refused = command(capsys, topics, spec, "export-offsets", "--group", f"{topics.prefix}-group")
    assert (code, "not committed and published yet" in refused["message"]) == (4, True)
