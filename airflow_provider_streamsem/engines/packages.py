"""
The Spark packages (jars) that a pipeline needs and Spark does not contain. Imports no pyspark.

A package must have the version of the Spark that loads it. The versions are those of the installed pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_streamsem.engines.dedup import Dedup
from airflow_provider_streamsem.sinks.contract import Sink
from airflow_provider_streamsem.sources.contract import Source

SETTING = "spark.jars.packages"


@dataclass(frozen=True, slots=True)
class Package:
    """
    A package that is loaded beside Spark.

    :param coordinates: for ``spark.jars.packages``, with ``{spark}``, ``{scala}`` and ``{hadoop}`` for versions
    :param contains: a class of it
    """

    coordinates: str
    contains: str


KAFKA = Package(
    "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}", "org.apache.spark.sql.kafka010.KafkaSourceProvider"
)
AVRO = Package("org.apache.spark:spark-avro_{scala}:{spark}", "org.apache.spark.sql.avro.AvroDataToCatalyst")
S3A = Package("org.apache.hadoop:hadoop-aws:{hadoop}", "org.apache.hadoop.fs.s3a.S3AFileSystem")
_NAMED = {"kafka": KAFKA, "avro": AVRO}


def needed(source: Source, sinks: Mapping[str, Sink], dedup: Dedup | None, log: str) -> list[Package]:
    """
    The packages that Spark needs to read this source, write these sinks and remember ids.

    :param log: URL of the commit log, beside which the ids are kept
    """
    found = [_NAMED[name] for name in source.spark_packages]
    places = [
        source.place,
        *(sink.attempt_place(0, "0") for sink in sinks.values()),
        *([log] if dedup is not None and dedup.scope == "pipeline" else []),
    ]
    return [*found, S3A] if any(place and place.startswith(("s3://", "s3a://")) for place in places) else found


def coordinates(packages: Iterable[Package]) -> str | None:
    """The value of ``spark.jars.packages`` for the installed pyspark; ``None`` where no classic pyspark is installed."""
    versions = _versions()
    return None if versions is None else ",".join(package.coordinates.format(**versions) for package in packages)


def added(conf: Mapping[str, str], packages: Iterable[Package]) -> dict[str, str]:
    """Settings of Spark with these packages beside those that they name."""
    found = coordinates(packages)
    return {**conf, SETTING: ",".join(part for part in (conf.get(SETTING), found) if part)} if found else dict(conf)


def _versions() -> dict[str, str] | None:
    spec = find_spec("pyspark")
    places = [] if spec is None else [Path(place) / "jars" for place in spec.submodule_search_locations or ()]
    jars = [jar.name for place in places for jar in place.glob("*.jar")]
    found = {
        "scala": _version(jars, r"scala-library-(\d+\.\d+)\."),
        "hadoop": _version(jars, r"hadoop-client-api-(.+)\.jar"),
    }
    if None in found.values():
        return None
    return {**{name: str(version) for name, version in found.items()}, "spark": metadata.version("pyspark")}


def _version(jars: list[str], pattern: str) -> str | None:
    return next((match[1] for jar in jars if (match := re.match(pattern, jar))), None)
