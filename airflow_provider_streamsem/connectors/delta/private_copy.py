"""
Writes rows to a Delta table with Spark (extra ``delta``), so that the table accepts the result once (ADR 0024).

Spark's Delta writer has no atomic commit on S3, and two publishers could both commit. So Spark writes into a *private copy* of the table: a directory below the
table with a log that names the files of the table, and which no other process uses. The entry that Spark writes to the log of the copy then becomes the next
entry of the table's log. A conditional request creates that entry: it succeeds only if no other writer has committed since the copy was made.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.delta.history import History, encoded, key_of
from airflow_provider_streamsem.connectors.delta.snapshot import Action, Snapshot, file_of, snapshot
from airflow_provider_streamsem.errors import PublishError, StreamsemError
from airflow_provider_streamsem.stores.contract import hadoop_location
from airflow_provider_streamsem.stores.dataset import open_dataset

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIRECTORY = "merged"
"""The directory below the table with the private copies. Their data files become files of the table."""
_SETTINGS = {
    # Otherwise Spark compacts the copy in a second entry, whose files the table would never reference.
    "spark.databricks.delta.autoCompact.enabled": "false",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    "spark.databricks.delta.commitInfo.enabled": "true",
    # A write that changes no row is a commit, too.
    "spark.databricks.delta.skipRecordingEmptyCommits": "false",
    "spark.sql.runSQLOnFiles": "true",
}
_UNSET = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
"""With these settings, Spark would skip the write without an error if the table has the transaction already."""
_COPIED, _WRITTEN = 0, 1
"""The entries of the log of a private copy."""
_EXPECTED = frozenset(["commitInfo", "add", "remove", "cdc", "metaData", "domainMetadata"])
_ROW_TRACKING = "delta.rowTracking"
_DV_NAME_LENGTH = 20
"""The length of the name of a file with deletion vectors. A directory may precede the name (Delta protocol, *Deletion Vectors*)."""
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(_Z85, _B85)


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """
    A private copy of a table at one version.

    :param location: the location of the table
    :param version: the version of the table
    :param key: the directory of the copy, below the location
    :param state: the state of the table at the version
    """

    location: str
    version: int
    key: str
    state: Snapshot

    @classmethod
    def create(cls, session: SparkSession, location: str, version: int) -> PrivateCopy:
        """
        Create the copy.

        :param session: a session for this publisher only, because the settings of the session are changed
        """
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        for name in _UNSET:
            session.conf.unset(name)
        session.catalog.setCurrentCatalog("spark_catalog")  # finds tables by path
        copy = cls(location, version, f"{DIRECTORY}/{SYSTEM_CLOCK.new_id()}", snapshot(location, version))
        open_dataset(location).create(f"{copy.key}/{key_of(_COPIED)}", copy._first_entry())
        return copy

    @property
    def name(self) -> str:
        """The name of the copy in Spark SQL."""
        return f"delta.{quoted(f'{hadoop_location(self.location)}/{self.key}')}"

    def delete(self) -> None:
        """Delete the copy and the files that Spark wrote to it. Must not be called after the result was sent to the table."""
        self._remove("")

    def written(self) -> tuple[Action, list[Action]]:
        """
        Return the commit information of the write, and its changes as actions of the table's log. Delete the log of the copy.

        :raises PublishError: Spark has changed more than rows
        """
        actions = History(f"{self.location.rstrip('/')}/{self.key}").actions(_WRITTEN)
        if actions is None:
            raise self._refusal("Spark has committed nothing to the private copy of the Delta table", [])
        unexpected = sorted({kind for action in actions for kind in action} - _EXPECTED)
        unexpected += [f"metaData.{name}" for each in _of_kind(actions, "metaData") for name in self._changed(each)]
        unexpected += [
            each["domain"] for each in _of_kind(actions, "domainMetadata") if each["domain"] != _ROW_TRACKING
        ]
        if unexpected:
            raise self._refusal("the write by Spark changes more than the rows of the Delta table", unexpected)
        info, changes = _of_kind(actions, "commitInfo")[0], [self._change(action) for action in actions]
        self._remove("_delta_log/")
        return info, [change for change in changes if change]

    def _remove(self, directory: str) -> None:
        """The table references nothing in the directory. The publisher may lack the right to delete."""
        with suppress(StreamsemError):
            open_dataset(self.location).remove_tree(f"{self.key}/{directory}")

    def _first_entry(self) -> bytes:
        """Return an entry that describes the state of the table, with absolute paths."""
        newest = History(self.location).entry(self.version)
        in_commit_ms = None if newest is None else newest.in_commit_ms
        info = {
            "operation": "COPY",
            "timestamp": SYSTEM_CLOCK.now_ms(),
            **({} if in_commit_ms is None else {"inCommitTimestamp": in_commit_ms}),
        }
        state = self.state
        lines: list[Action] = [{"commitInfo": info}, {"protocol": state.protocol}, {"metaData": state.metadata}]
        lines += [{"domainMetadata": domain} for domain in state.domains.values()]
        lines += [{"add": self._absolute(add)} for add in state.files.values()]
        return encoded(lines)

    def _absolute(self, add: Action) -> Action:
        root = _uri(hadoop_location(self.location))
        absolute = {**add, "path": add["path"] if _is_absolute(add["path"]) else f"{root}/{add['path']}"}
        vector = add.get("deletionVector")
        if vector is not None and vector["storageType"] == "u":
            prefix, name = _divided(vector["pathOrInlineDv"])
            file = f"deletion_vector_{uuid.UUID(bytes=base64.b85decode(name.translate(_TO_B85)))}.bin"
            path = "/".join(filter(None, [root, _uri(prefix), file]))
            absolute["deletionVector"] = {**vector, "storageType": "p", "pathOrInlineDv": path}
        return absolute

    def _changed(self, metadata: Action) -> list[str]:
        """Return the fields of the metadata that a write must not change. The schema has the largest values of identity columns."""
        names = {*metadata, *self.state.metadata} - {"schemaString"}
        return sorted(name for name in names if metadata.get(name) != self.state.metadata.get(name))

    def _change(self, action: Action) -> Action:
        """Return an action of the copy as an action of the table; empty for the commit information."""
        [(kind, value)] = action.items()
        if kind == "add":
            return {"add": self._added(value)}
        if kind == "remove":
            return {"remove": _as_in(value, self._original(value))}
        if kind == "cdc":
            return {"cdc": {**value, "path": self._path(value["path"])}}
        return {} if kind == "commitInfo" else action

    def _added(self, add: Action) -> Action:
        if _is_absolute(add["path"]):  # a file of the table, with another deletion vector
            original = self._original(add)
            added = {**add, "path": original["path"]}
            if add.get("deletionVector") == self._absolute(original).get("deletionVector"):
                return {**added, **{name: original[name] for name in ("deletionVector",) if name in original}}
        else:
            own_version = {} if "defaultRowCommitVersion" not in add else {"defaultRowCommitVersion": self.version + 1}
            added = {**add, "path": self._path(add["path"]), **own_version}
        vector = add.get("deletionVector")
        if vector is not None and vector["storageType"] == "u":
            prefix, name = _divided(vector["pathOrInlineDv"])
            path = "/".join(filter(None, [self.key, prefix]))
            added["deletionVector"] = {**vector, "pathOrInlineDv": f"{path}{name}"}
        return added

    def _original(self, action: Action) -> Action:
        file = file_of(action["path"], self.location)
        if file not in self.state.files:
            raise self._refusal(
                "the write by Spark changes a file that the Delta table does not have", [file.rpartition("/")[2]]
            )
        return self.state.files[file]

    def _path(self, path: str) -> str:
        return f"{quote(self.key)}/{path}"

    def _refusal(self, summary: str, found: Sequence[str]) -> PublishError:
        return PublishError(f"{summary}; nothing of the batch is in the table", table=self.location, found=found[:3])


def _of_kind(actions: Sequence[Action], kind: str) -> list[Action]:
    return [action[kind] for action in actions if kind in action]


def _is_absolute(path: str) -> bool:
    return path.startswith("/") or ":" in path.partition("/")[0]


def _uri(path: str) -> str:
    """Escape a path as Hadoop does."""
    return quote(path, safe="/:@!$&'()*+,;=~")


def _divided(vector: str) -> tuple[str, str]:
    """Return the directory and the name in the path of a deletion vector."""
    return vector[:-_DV_NAME_LENGTH], vector[-_DV_NAME_LENGTH:]


def _as_in(remove: Action, add: Mapping[str, Any]) -> Action:
    """Return a remove action with the path and the deletion vector of the add action, because readers compare them as text."""
    removed = {name: value for name, value in remove.items() if name != "deletionVector"}
    vector = add.get("deletionVector")
    return {**removed, "path": add["path"], **({} if vector is None else {"deletionVector": vector})}
