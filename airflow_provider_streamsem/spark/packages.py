"""
The Spark packages (jars) that a pipeline needs in addition to Spark's own jars. This module does not import pyspark.

A package must match the version of Spark that loads it, so the versions are derived from the installed pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from airflow_provider_streamsem.connectors.lookup import Lookup
from airflow_provider_streamsem.connectors.sink import Sink
from airflow_provider_streamsem.connectors.source import Source
from airflow_provider_streamsem.deduplication.settings import Dedup
from airflow_provider_streamsem.errors import InvalidError

SETTING = "spark.jars.packages"
_EXTENSIONS = "spark.sql.extensions"
_LISTS = (SETTING, _EXTENSIONS)


@dataclass(frozen=True, slots=True)
class Package:
    """
    An additional Spark package.

    :param coordinates: Maven coordinates for ``spark.jars.packages``, with the placeholders ``{spark}``, ``{scala}`` and ``{hadoop}`` for versions, and
        ``{minor}`` for the first two numbers of Spark's version
    :param contains: name of a class in the package, which the engine tries to load to check whether Spark has the package
    :param minors: the first two numbers of the versions of Spark for which there is a release; empty: all
    :param settings: settings that a session needs to use the package. The value of ``spark.sql.extensions`` is one of a list
    """

    coordinates: str
    contains: str
    minors: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict, hash=False)


KAFKA = Package(
    "org.apache.spark:spark-sql-kafka-0-10_{scala}:{spark}", "org.apache.spark.sql.kafka010.KafkaSourceProvider"
)
AVRO = Package("org.apache.spark:spark-avro_{scala}:{spark}", "org.apache.spark.sql.avro.AvroDataToCatalyst")
S3A = Package("org.apache.hadoop:hadoop-aws:{hadoop}", "org.apache.hadoop.fs.s3a.S3AFileSystem")
DELTA = Package(
    "io.delta:delta-spark_{minor}_{scala}:4.1.0",
    "io.delta.sql.DeltaSparkSessionExtension",
    ("4.0", "4.1"),
    {
        _EXTENSIONS: "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    },
)
ICEBERG = Package(
    "org.apache.iceberg:iceberg-spark-runtime-{minor}_{scala}:1.11.0",
    "org.apache.iceberg.spark.SparkCatalog",
    ("4.0", "4.1"),
)
_NAMED = {"kafka": KAFKA, "avro": AVRO, "s3a": S3A, "delta": DELTA, "iceberg": ICEBERG}


def needed(
    inputs: Sequence[Source | Lookup], sinks: Mapping[str, Sink], dedup: Dedup | None, log: str
) -> list[Package]:
    """Return the packages that Spark needs for the inputs, the sinks, and the deduplication state, which is stored below the URL of the log."""
    packages = named(name for part in (*inputs, *sinks.values()) for name in part.spark_packages)
    locations = [
        *(part.location for part in inputs),
        *(sink.attempt_location(0, "0") for sink in sinks.values()),
        *([log] if dedup is not None and dedup.scope == "pipeline" else []),
    ]
    on_s3 = any(location and location.startswith(("s3://", "s3a://")) for location in locations)
    return [*packages, S3A] if on_s3 and S3A not in packages else packages


def named(names: Iterable[str]) -> list[Package]:
    """Return the packages with these names, each once."""
    return [_NAMED[name] for name in sorted({*names}, key=[*_NAMED].index)]


def missing_settings(packages: Iterable[Package], value_of: Callable[[str], str]) -> dict[str, str]:
    """
    Return the settings that the packages need and a session lacks.

    :param value_of: name of a setting → its value in the session; ``""`` if it is not set
    """
    return {
        name: value
        for package in packages
        for name, value in package.settings.items()
        if value not in (part.strip() for part in value_of(name).split(","))
    }


def coordinates(packages: Iterable[Package]) -> str | None:
    """Return the value of ``spark.jars.packages`` for the installed pyspark; ``None`` if classic pyspark is not installed."""
    versions, packages = _versions(), list(packages)
    unreleased = [] if versions is None else [p for p in packages if p.minors and versions["minor"] not in p.minors]
    if unreleased:
        raise InvalidError(
            "there is no release of a Spark package for the installed Spark; nothing was staged",
            packages=[package.coordinates.partition("_{minor}")[0] for package in unreleased],
            accepted=[f"Spark {minor}" for minor in unreleased[0].minors],
        ).advising(
            'name the package in spark.jars.packages yourself, without spark_packages="auto"; or install another Spark.'
        )
    return None if versions is None else ",".join(package.coordinates.format(**versions) for package in packages)


def added(conf: Mapping[str, str], packages: Iterable[Package]) -> dict[str, str]:
    """Return the settings with these packages appended to ``spark.jars.packages``, and with the settings that the packages need."""
    packages = list(packages)
    added_coordinates = coordinates(packages)
    if not added_coordinates:
        return dict(conf)
    missing = {SETTING: added_coordinates} | missing_settings(packages, lambda name: conf.get(name, ""))
    lists = {name: ",".join(filter(None, [conf.get(name), missing[name]])) for name in missing if name in _LISTS}
    return {**missing, **conf, **lists}


def _versions() -> dict[str, str] | None:
    spec = find_spec("pyspark")
    locations = [] if spec is None else [Path(location) / "jars" for location in spec.submodule_search_locations or ()]
    jars = [jar.name for location in locations for jar in location.glob("*.jar")]
    versions = {
        "scala": _version(jars, r"scala-library-(\d+\.\d+)\."),
        "hadoop": _version(jars, r"hadoop-client-api-(.+)\.jar"),
    }
    if None in versions.values():
        return None
    spark = metadata.version("pyspark")
    numbers = {"spark": spark, "minor": ".".join(spark.split(".")[:2])}
    return {**{name: str(version) for name, version in versions.items()}, **numbers}


def _version(jars: list[str], pattern: str) -> str | None:
    return next((match[1] for jar in jars if (match := re.match(pattern, jar))), None)
