"""Iceberg's REST catalog server, and independent Iceberg readers: Spark's and DuckDB's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark

from tests.integration.parts import install
from tests.integration.parts.server import Server, free_port
from tests.integration.parts.spark import session_conf

_JARS = Path(pyspark.__file__).parent / "jars"
_DUCKDB_READS = """
import json, sys, duckdb, duckdb_extensions
for name in ("avro", "iceberg"):
    duckdb_extensions.import_extension(name)
connection = duckdb.connect()
connection.execute("LOAD avro; LOAD iceberg; SET TimeZone = 'UTC'")
metadata, columns = sys.argv[1], sys.argv[2]
rows = connection.execute(f"SELECT {columns} FROM iceberg_scan('{metadata}')").fetchall()
print(json.dumps([list(row) for row in rows], default=str))
"""
_SPARK_READS = """
import json, sys
from pyspark.sql import SparkSession
conf, queries = json.loads(sys.argv[1]), sys.argv[2:]
builder = SparkSession.builder.master("local[1]")
for name, value in conf.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
session.sparkContext.setLogLevel("OFF")
print(json.dumps([[list(row) for row in session.sql(query).collect()] for query in queries], default=str))
"""


class RestCatalog(Server):
    """The server of Apache's Docker image ``iceberg-rest-fixture``, with SQLite as its database. It listens on every address of the machine."""

    def __init__(self, home: Path) -> None:
        jars = [install.classpath("iceberg"), *map(str, sorted(_JARS.glob("hadoop-client-*.jar")))]
        home.mkdir(parents=True, exist_ok=True)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.in_spark = f"rest{port}"
        """A name for Spark, which keeps the first catalog of a name until the session ends."""
        argv = [
            install.java(), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", os.pathsep.join(jars), "org.apache.iceberg.rest.RESTCatalogServer",
        ]  # fmt: skip
        settings = {
            "CATALOG_URI": f"jdbc:sqlite:{home}/catalog.db",
            "CATALOG_WAREHOUSE": f"file://{home}/warehouse",
            "CATALOG_REST_PORT": str(port),
        }
        super().__init__("iceberg-rest", home, argv, port=port, environment=settings)

    def spark_conf(self, name: str) -> dict[str, str]:
        """Return the settings with which Spark finds the tables of this server in the catalog ``name``."""
        settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "rest", ".uri": self.url}
        return {f"spark.sql.catalog.{name}{setting}": value for setting, value in {**settings, ".cache-enabled": "false"}.items()}  # fmt: skip


def read_by_spark(catalog: RestCatalog, *queries: str) -> list[list[list[Any]]]:
    """Run queries on the catalog ``lake`` with Spark's own Iceberg reader in a separate process, and return the rows of each."""
    conf = session_conf()
    jars = f"{conf['spark.driver.extraClassPath']}:{install.classpath('peers')}"
    conf |= {
        "spark.driver.extraClassPath": jars,
        "spark.executor.extraClassPath": jars,
        **catalog.spark_conf("lake"),
    }
    rows: list[list[list[Any]]] = _printed([sys.executable, "-c", _SPARK_READS, json.dumps(conf), *queries])
    return rows


def read_by_duckdb(metadata: str, columns: str) -> list[list[Any]]:
    """Read columns of the table of a metadata file with DuckDB's own Iceberg reader in a separate process."""
    path = metadata.removeprefix("file:")
    rows: list[list[Any]] = _printed([sys.executable, "-c", _DUCKDB_READS, path, columns])
    return rows


def _printed(command: list[str]) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])
