"""
Merges rows into a Delta table with Spark (extra ``delta``), so that the table accepts the result once (ADR 0024).

Spark's Delta writer has no atomic commit on S3, and two publishers could both commit. So Spark merges into a *private copy* of the table: a shallow clone in a
new directory below the table, which no other process uses. The entry that Spark writes to the log of the copy then becomes the next entry of the table's log. A
conditional request creates that entry: it succeeds only if no other writer has committed since the copy was made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.columns.identifiers import quoted
from airflow_provider_streamsem.connectors.delta.active_files import add_actions, file_of
from airflow_provider_streamsem.connectors.delta.history import History
from airflow_provider_streamsem.errors import PublishError
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
}
_UNSET = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
"""With these settings, Spark would skip the merge without an error if the table has the transaction already."""
_DEFAULTS = "spark.databricks.delta.properties.defaults."
"""With settings of this prefix, Spark would give the copy properties that the table lacks."""
_CLONED, _MERGED = 0, 1
"""The entries of the log of a private copy."""
_EXPECTED = frozenset(["commitInfo", "add", "remove", "cdc"])
_DV_NAME_LENGTH = 20
"""The length of the name of a file with deletion vectors. A directory may precede the name (Delta protocol, *Deletion Vectors*)."""


@dataclass(frozen=True, slots=True)
class PrivateCopy:
    """
    A private copy of a table at one version.

    :param location: the location of the table
    :param version: the version of the table
    :param key: the directory of the copy, below the location
    """

    location: str
    version: int
    key: str

    @classmethod
    def create(cls, session: SparkSession, location: str, version: int) -> PrivateCopy:
        """
        Create the copy.

        :param session: a session for this publisher only, because the settings of the session are changed
        """
        for name, value in _SETTINGS.items():
            session.conf.set(name, value)
        for name in (*_UNSET, *(name for name in session.conf.getAll if name.startswith(_DEFAULTS))):
            session.conf.unset(name)
        copy = cls(location, version, f"{DIRECTORY}/{SYSTEM_CLOCK.new_id()}")
        # Delta looks for a log in each directory above a path. Without this object, it would take the copy for a partition of the table.
        open_dataset(location).create(f"{copy.key}/_delta_log/_streamsem", b"")
        session.sql(f"CREATE TABLE {copy.name} SHALLOW CLONE {_name(location)} VERSION AS OF {version:d}")
        return copy

    @property
    def name(self) -> str:
        """The name of the copy in Spark SQL."""
        return _name(self.location, self.key)

    def check_properties(self, configuration: Mapping[str, str]) -> None:
        """
        Check that the copy has the properties of the table. With other properties, Spark would write files that the table's readers cannot read.

        :raises PublishError: a property differs
        """
        [metadata] = _of_kind(self._entry(_CLONED), "metaData")
        copied = metadata.get("configuration", {})
        if differing := sorted(name for name, _ in {*copied.items()} ^ {*configuration.items()}):
            raise self._refusal("Spark gives a private copy other properties than the Delta table has", differing)

    def delete(self) -> None:
        """Delete the copy and the files that Spark wrote to it. Must not be called after the result was sent to the table."""
        open_dataset(self.location).remove_tree(f"{self.key}/")

    def merged(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """
        Return the commit information of the merge, and its changes as actions of the table's log. Delete the log of the copy.

        :raises PublishError: Spark has changed more than rows
        """
        actions = self._entry(_MERGED)
        unexpected = sorted({kind for action in actions for kind in action} - _EXPECTED)
        if unexpected:
            raise self._refusal("the merge by Spark changes more than the rows of the Delta table", unexpected)
        info, changes = _of_kind(actions, "commitInfo")[0], self._changes(actions)
        open_dataset(self.location).remove_tree(f"{self.key}/_delta_log/")
        return info, changes

    def _entry(self, number: int) -> list[dict[str, Any]]:
        actions = History(f"{self.location.rstrip('/')}/{self.key}").actions(number)
        if actions is None:
            raise self._refusal("Spark has committed no merge to the private copy of the Delta table", [])
        return actions

    def _changes(self, actions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the actions on files, with paths relative to the table, or as the table's log spells them."""
        own = [a for kind in ("add", "remove") for a in _of_kind(actions, kind) if not _is_new(a)]
        originals = add_actions(self.location, self.version, {file_of(action["path"], self.location) for action in own})
        if lacking := sorted({file_of(a["path"], self.location) for a in own} - originals.keys()):
            raise self._refusal("the merge by Spark changes files that the Delta table does not have", lacking)
        changes: list[dict[str, Any]] = []
        for action in actions:
            for kind, value in action.items():
                if kind == "add":
                    changes.append({"add": self._added(value, originals)})
                elif kind == "remove":
                    original = originals[file_of(value["path"], self.location)]
                    changes.append({"remove": _as_in(value, original)})
                elif kind == "cdc":
                    changes.append({"cdc": {**value, "path": self._path(value["path"])}})
        return changes

    def _added(self, add: Mapping[str, Any], originals: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        added = dict(add)
        if _is_new(add):
            added["path"] = self._path(add["path"])
        else:
            added["path"] = originals[file_of(add["path"], self.location)]["path"]
        vector = add.get("deletionVector")
        if vector is not None and vector["storageType"] == "u":
            named = vector["pathOrInlineDv"]
            prefix, name = named[:-_DV_NAME_LENGTH], named[-_DV_NAME_LENGTH:]
            parts = [self.key, prefix] if prefix else [self.key]
            added["deletionVector"] = {**vector, "pathOrInlineDv": f"{'/'.join(parts)}{name}"}
        return added

    def _path(self, path: str) -> str:
        return f"{quote(self.key)}/{path}"

    def _refusal(self, summary: str, found: Sequence[str]) -> PublishError:
        return PublishError(f"{summary}; nothing of the batch is in the table", table=self.location, found=found[:3])


def _of_kind(actions: Sequence[Mapping[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [action[kind] for action in actions if kind in action]


def _is_new(action: Mapping[str, Any]) -> bool:
    """Whether Spark wrote the file into the copy. The copy references the files of the table by absolute paths."""
    return ":" not in action["path"].partition("/")[0]


def _as_in(remove: Mapping[str, Any], add: Mapping[str, Any]) -> dict[str, Any]:
    """Return a remove action with the path and the deletion vector of the add action, because readers compare them as text."""
    removed = {name: value for name, value in remove.items() if name != "deletionVector"}
    vector = add.get("deletionVector")
    return {**removed, "path": add["path"], **({} if vector is None else {"deletionVector": vector})}


def _name(location: str, key: str = "") -> str:
    return f"delta.{quoted('/'.join(filter(None, [hadoop_location(location), key])))}"
