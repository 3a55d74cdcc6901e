"""
Replaces files of a Delta table by new files, in one entry of the table's log (extra ``delta``). Imports pyarrow, so only the sink imports this module, when it
compacts or erases.

Entries of other writers may precede this entry, unless they remove files that it replaces. The error of a failed commit does not show whether the commit was
applied. So this module searches the table's log for the id that it gave to its entry.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_streamsem.clock import SYSTEM_CLOCK, doubling, tries
from airflow_provider_streamsem.connectors.delta.history import History
from airflow_provider_streamsem.connectors.delta.mergeable import NULL_TEXTS, PARTITION_TYPES, misspelt
from airflow_provider_streamsem.connectors.delta.requirements import unwritable
from airflow_provider_streamsem.connectors.delta.rewrite import AddedFile, NewFile, RewrittenTable, actions
from airflow_provider_streamsem.connectors.delta.table import is_transient, open_newest
from airflow_provider_streamsem.connectors.staged_parquet.old_times import REWRITE_BY_SPARK
from airflow_provider_streamsem.errors import DataError, InvalidError, StreamsemError, UnavailableError

_COMMITS = 6
_FIRST_WAIT_S = 0.04


class UnknownCommitError(UnavailableError):
    """The entry may still be committed, so its new files must remain."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """
    Replaces files of one table.

    :param work: names the work in messages and in the table's log: ``compaction`` or ``erasure``
    :param other_engine: what another engine runs in place of this work, such as ``OPTIMIZE``
    :param changes_data: whether the new files have other rows than the replaced ones
    """

    target: RewrittenTable
    work: str
    other_engine: str
    changes_data: bool

    @property
    def _key(self) -> str:
        """The key in the commit information of an entry. Its value is the id of the work."""
        return f"streamsem_{self.work}"

    def check_requirements(self, table: Any) -> None:
        """Refuse a table with requirements for writers that a replacement does not satisfy."""
        if problems := [*unwritable(table), *(f"path {path}" for path in misspelt(table)[:1])]:
            summary = f"the Delta table has requirements for writers that the {self.work} does not satisfy; nothing was written"
            raise InvalidError(summary, table=self.target.location, requires=problems).advising(
                f"run {self.other_engine} in an engine that supports these requirements, such as Spark."
            )

    def check_partitions(self, table: Any, chosen: Iterable[AddedFile]) -> None:
        """Refuse files whose partition values delta-rs would write as other values."""
        types = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
        columns = list(table.metadata().partition_columns)
        unsupported = [name for name in columns if types[name] not in PARTITION_TYPES]
        unsupported += [name for name in columns if any(file[f"partition.{name}"] in NULL_TEXTS for file in chosen)]
        if unsupported:
            summary = "delta-rs may change values of partition columns when it writes them; nothing was written"
            facts: dict[str, Any] = {"columns": unsupported, "accepted": list(PARTITION_TYPES)}
            raise InvalidError(summary, table=self.target.location, **facts).advising(
                f"run {self.other_engine} in another engine, such as Spark."
            )

    def check_dates(self, file: str, columns: Sequence[str]) -> None:
        """Refuse a file with dates or times that would change. ``columns``: those that have any."""
        if columns:
            summary = f"a file of the Delta table contains dates or times that the {self.work} would change; nothing was written"
            raise InvalidError(summary, table=self.target.location, file=file, columns=sorted({*columns})).advising(
                f"{REWRITE_BY_SPARK}, or run {self.other_engine} in Spark."
            )

    def missing(self, file: str) -> InvalidError:
        summary = "a file of the Delta table was not found below the table's path; nothing was written"
        return InvalidError(summary, table=self.target.location, file=file).advising(
            f"restore the file. For a shallow clone, run {self.other_engine} in another engine."
        )

    def commit(self, chosen: Sequence[AddedFile], new: Sequence[NewFile], before_commit: Callable[[], None]) -> int:
        """Commit the entry after the entries of other writers, if these have not removed the replaced files. Return its number."""
        from deltalake import CommitProperties, Schema

        path, identifier = self.target.location, SYSTEM_CLOCK.new_id()
        paths = {file["path"] for file in chosen}
        changes = actions(new, chosen, self.target, changes_data=self.changes_data)
        for _ in tries(doubling(_FIRST_WAIT_S, _COMMITS - 1)):
            cached = open_newest(path)
            table = None if cached is None else cached.table
            if table is None or not paths <= {file["path"] for file in RewrittenTable(path, table).files()}:
                break
            self.check_requirements(table)
            before_commit()
            before, failure = table.version(), None
            try:
                table.create_write_transaction(
                    changes,
                    "append",
                    Schema.from_json(table.schema().to_json()),
                    list(self.target.partition_by),
                    commit_properties=CommitProperties(max_commit_retries=0, custom_metadata={self._key: identifier}),
                )
            except Exception as error:  # the entry may have been committed, so the table's log is read
                failure = error
            found = self._find_entry(before + 1, identifier)
            if found is not None:
                return found
            if failure is not None and History(path).actions(before + 1) is None:
                raise self.failed(failure) from failure
        summary = f"another writer changed the Delta table during the {self.work}, which was not committed; no row was changed"
        raise UnavailableError(summary, table=path, tries=_COMMITS).advising(
            "repeat the command when the other writer has ended. In a DAG, set `retries`."
        )

    def _find_entry(self, start: int, identifier: str) -> int | None:
        """Return the number of the entry, at or above ``start``; ``None`` if the table's log does not have it."""
        history, version = History(self.target.location), start
        while (entry := history.actions(version)) is not None:
            if any(action.get("commitInfo", {}).get(self._key) == identifier for action in entry):
                return version
            version += 1
        return None

    def failed(self, error: Exception) -> StreamsemError:
        facts = {"table": self.target.location, "problem": type(error).__name__}
        if is_transient(error):
            summary = f"the store did not report the result of a request; the table's log has no entry of the {self.work} yet, but it may get one"
            return UnknownCommitError(summary, **facts).advising("repeat the command: it continues with what remains.")
        summary = f"files of the Delta table cannot be replaced by the {self.work}; the table was not changed"
        return DataError(summary, **facts).advising(
            f"correct the cause that the exception above names, or run {self.other_engine} in another engine."
        )
