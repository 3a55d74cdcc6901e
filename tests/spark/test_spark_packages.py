"""The Spark packages that a pipeline needs, and the error of a run without them."""

from __future__ import annotations

from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession

from airflow_provider_streamsem import Avro, Dedup, FilesSink, FilesSource, Json, KafkaSource, Pipeline
from airflow_provider_streamsem.commitlog.log import CommitLog
from airflow_provider_streamsem.engine import Job
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.spark import packages
from airflow_provider_streamsem.spark.spark_engine import SparkEngine
from airflow_provider_streamsem.stores.memory import MemoryStore
from tests.protocol import samples

SCHEMA = '{"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}'
KAFKA = KafkaSource(topics=["t"], bootstrap_servers="127.0.0.1:1", value=Json("id long"))
FILES = FilesSource(path="/in", format="text")
DISK, S3 = FilesSink(path="/out"), FilesSink(path="s3://lake/out")


def pipeline(**changes: object) -> Pipeline:
    arguments: dict[str, object] = {"name": "p", "log": "/log", "source": FILES, "sinks": {"out": DISK}}
    return Pipeline(**{**arguments, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({}, []),
        ({"source": KAFKA}, [packages.KAFKA]),
        ({"source": KafkaSource(topics=["t"], bootstrap_servers="b:1", value=Avro(SCHEMA))}, [packages.KAFKA, packages.AVRO]),
        ({"sinks": {"out": S3}}, [packages.S3A]),
        ({"source": FilesSource(path="s3://lake/in", format="text")}, [packages.S3A]),
        ({"log": "s3://lake/log"}, []),
        ({"log": "s3://lake/log", "dedup": Dedup(keys=["value"], ttl_s=60)}, [packages.S3A]),
    ],
)  # fmt: skip
def test_pipeline_lists_the_packages_that_it_needs(changes: dict[str, object], needed: list[packages.Package]) -> None:
    assert pipeline(**changes).spark_packages == needed


def test_packages_have_the_versions_of_the_installed_spark() -> None:
    spark, hadoop, both = (packages.coordinates([p]) for p in (packages.KAFKA, packages.S3A, packages.AVRO))
    assert spark == f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"
    jars = {jar.name for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    assert hadoop is not None
    assert f"hadoop-client-api-{hadoop.rsplit(':', 1)[1]}.jar" in jars
    assert packages.added({packages.SETTING: "a:b:1"}, [packages.AVRO])[packages.SETTING] == f"a:b:1,{both}"


@pytest.mark.spark
def test_missing_package_is_reported_before_anything_is_read(spark: SparkSession) -> None:
    job = Job(
        source=KAFKA, pins=(), sinks={"out": DISK}, transform=lambda frame: frame, transform_name="t", where=None, max_quarantined=0, schemas={}, plan=samples.plan(),
        attempt_id="a",
    )  # fmt: skip
    with pytest.raises(InvalidError, match="Spark lacks packages") as raised:
        SparkEngine().stage(job, CommitLog(MemoryStore()))
    assert raised.value.fields["packages"] == packages.coordinates([packages.KAFKA])


def test_packages_cannot_be_added_to_a_connect_server() -> None:
    with pytest.raises(InvalidError, match="start the server with the packages"):
        SparkEngine(remote="sc://localhost:15002", packages="auto")
