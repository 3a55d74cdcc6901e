"""
Reads the state of a transform at a version as a DataFrame, with Spark's data source for state.

The data source reads a checkpoint directory. This module provides one that consists of links, so it writes nothing to the log. Some links lead to the state
files in the log. The others lead to temporary directories with the entries of Spark's offset log and commit log, which the module derives from the outcome, and
with copies of metadata.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors import jvm
from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.readers.files import CommittedLog, open_log
from airflow_provider_streamsem.state import files as state_files
from airflow_provider_streamsem.state.settings import LOCATION, OperatorState, operator_state, with_schema_files_in
from airflow_provider_streamsem.stores.contract import hadoop_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STREAMING = "org.apache.spark.sql.execution.streaming"
_STORE = {
    "spark.sql.streaming.stateStore.providerClass": f"{_STREAMING}.state.RocksDBStateStoreProvider",
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}


def read_state(
    spark: SparkSession,
    log: str | CommittedLog,
    *,
    operator: int = 0,
    version: int | None = None,
    options: dict[str, str] | None = None,
) -> DataFrame:
    """
    Return the state of one stateful operator after a version as a DataFrame.

    The columns are ``key`` and ``value``, structs of the operator's own columns, and ``partition_id``. List and map states of ``transformWithState`` have other
    columns than ``value``. The DataFrame belongs to a new session of the same Spark application.

    :param spark: a classic session
    :param log: URL of the log, or an open log
    :param operator: number of the operator, in the order in which ``streamsem state`` shows the operators of a version; 0 is the first
    :param version: the version; default: the newest closed one
    :param options: further options of Spark's data source ``statestore``, such as ``{"joinSide": "left"}`` for a join. The state of
        ``transformWithState`` needs ``stateVarName``
    :raises InvalidError: no such log, version or operator; the version keeps no state; files of it are missing or were changed; or the session is one of Spark
        Connect
    """
    from pyspark.sql.utils import is_remote

    if is_remote():
        raise InvalidError("Spark Connect cannot read state", accepted="a classic Spark session")
    opened = open_log(log) if isinstance(log, str) else log
    at = opened.head if version is None else version
    outcome = opened.log.outcome(at)
    stored = None if outcome is None else outcome.state
    state = operator_state(stored)
    if state is None:
        summary = (
            "the version keeps no state of operators" if outcome is not None else "the log has no such closed version"
        )
        raise InvalidError(summary, log=opened.log.store.url, version=at, newest_closed=opened.head)
    if not 0 <= operator < len(state.operators):
        names = [each.name for each in state.operators]
        raise InvalidError("the version has no such operator", version=at, given=operator, operators=names)
    if not state_files.is_loadable(opened.log.store, stored):
        summary = "files of the state after this version are missing or were changed"
        raise InvalidError(summary, version=at).advising("read a newer version, or raise state.keep_versions.")
    session = spark.newSession()
    table = f"streamsem-{SYSTEM_CLOCK.new_id()}"
    settings = {
        **_STORE,
        "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.checkpointing.FileSystemBasedCheckpointFileManager",
        **_links(table, {**_state_links(opened.log.store.url, state, table), **_checkpoint(state)}),
    }
    for name, value in settings.items():
        session.conf.set(name, value)
    # Spark's state stores report to a coordinator, which the query manager of a session starts. A process that ran no stateful batch has none.
    jvm.session_of(session).sessionState().streamingQueryManager()
    source_options = {"batchId": str(state.batches - 1), "operatorId": str(operator), **(options or {})}
    return session.read.format("statestore").options(**source_options).load(f"viewfs://{table}/")


def _root_uri(url: str, state: OperatorState) -> str:
    """Return the directory of the state files as a URI, because the view file system parses the targets of its links as URIs."""
    return quote(f"{hadoop_location(url)}/{LOCATION}/{state.root}/state", safe=":/")


def _state_links(url: str, state: OperatorState, table: str) -> dict[str, str]:
    """Spark's metadata of ``transformWithState`` has absolute paths of schema files, so it is replaced by metadata with paths in the mount table."""
    root = _root_uri(url, state)
    links: dict[str, str] = {}
    for number, operator in enumerate(state.operators):
        if not operator.metadata:
            links[f"state/{number}"] = f"{root}/{number}"
            continue
        for name in ("_stateSchema", *range(len(operator.ids))):
            links[f"state/{number}/{name}"] = f"{root}/{number}/{name}"
        home = _temporary_directory()
        (home / "v2").mkdir()
        metadata = with_schema_files_in(operator.metadata, f"viewfs://{table}/state/{number}")
        (home / "v2" / str(state.batches - 1)).write_text(metadata)
        links[f"state/{number}/_metadata"] = f"file:{home}"
    return links


def _temporary_directory() -> Path:
    """Create a directory that is deleted when the process ends."""
    home = Path(tempfile.mkdtemp(prefix="streamsem-state-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    return home


def _checkpoint(state: OperatorState) -> dict[str, str]:
    """Write the entries of Spark's two logs for the newest batch of a state to a temporary directory. Return name of the log → URL of its directory."""
    home = _temporary_directory()
    conf = {**state.settings, **_STORE, "spark.sql.shuffle.partitions": str(state.partitions)}
    offsets = {"batchWatermarkMs": state.watermark_ms, "batchTimestampMs": 0, "conf": conf}
    ids = {str(number): [list(stores) for stores in operator.ids] for number, operator in enumerate(state.operators)}
    commit = {"nextBatchWatermarkMs": state.next_watermark_ms, "stateUniqueIds": ids}
    entries = {"offsets": f"v1\n{json.dumps(offsets)}\n0", "commits": f"v2\n{json.dumps(commit)}"}
    for name, text in entries.items():
        (home / name).mkdir()
        (home / name / str(state.batches - 1)).write_text(text)
    return {name: f"file:{home / name}" for name in entries}


def _links(table: str, links: dict[str, str]) -> dict[str, str]:
    mounted = {f"fs.viewfs.mounttable.{table}.link./{name}": url for name, url in links.items()}
    return {"fs.viewfs.impl": "org.apache.hadoop.fs.viewfs.ViewFileSystem", **mounted}
