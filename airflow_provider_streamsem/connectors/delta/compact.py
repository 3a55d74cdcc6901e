"""
Compacts a Delta table (extra ``delta``). delta-rs rewrites small files in one entry of the table's log, whose actions change no data.

Entries of other writers may precede the entry of the compaction, unless they remove files that the compaction rewrites: delta-rs then refuses the commit. The
sink commits only to the version that it has read, so it opens the table again if a compaction was committed first.

The error of a failed commit does not show whether the commit was applied. So this module searches the table's log for the id that it gave to its entry.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import unquote

from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.compaction import TableRewrite
from airflow_provider_streamsem.connectors.delta.history import History
from airflow_provider_streamsem.connectors.delta.merge import NULL_TEXTS, PARTITION_TYPES, has_near_times
from airflow_provider_streamsem.connectors.delta.requirements import unwritable
from airflow_provider_streamsem.connectors.delta.table import is_transient, open_at_version, open_newest
from airflow_provider_streamsem.connectors.staged_parquet.keyed_rows import is_in_python
from airflow_provider_streamsem.connectors.staged_parquet.old_times import REWRITE_BY_SPARK, misread_columns
from airflow_provider_streamsem.errors import DataError, InvalidError, StreamsemError, UnavailableError
from airflow_provider_streamsem.stores.dataset import open_dataset

COMPACTION = "streamsem_compaction"
"""Key in the commit information of an entry that compacts. Its value is the id of the compaction."""
_READERS = 16


def compact(
    path: str, *, target_file_bytes: int, dry_run: bool, before_commit: Callable[[], None]
) -> list[TableRewrite]:
    """Compact a table, as :meth:`CompactsTable.compact_table` describes. One entry of the table's log rewrites all files."""
    cached = open_newest(path, refusal=InvalidError)
    if cached is None:
        return []
    table = cached.table
    _check_requirements(path, table)
    chosen = _choose(table, target_file_bytes)
    if chosen:
        _check_partitions(path, table, chosen)
        rows = _checked_rows(path, table, chosen)
    if not chosen or dry_run:
        cached.keep()
        return [_possible(chosen, rows)] if chosen else []
    before_commit()
    return _commit(path, table, target_file_bytes)


def _possible(chosen: Sequence[dict[str, Any]], rows: int) -> TableRewrite:
    return TableRewrite(rows=rows, files=len(chosen), bytes=sum(file["size_bytes"] for file in chosen))


def _check_requirements(path: str, table: Any) -> None:
    if problems := unwritable(table):
        summary = "the Delta table has requirements for writers that a compaction does not satisfy; nothing was written"
        raise InvalidError(summary, table=path, requires=problems).advising(
            "compact the table with OPTIMIZE of an engine that supports these requirements."
        )


def _choose(table: Any, target: int) -> list[dict[str, Any]]:
    """
    Return the add actions of the files that delta-rs rewrites, flattened; none if no partition has at least twice as many files as it needs.

    delta-rs does not list these files without rewriting them, so this function repeats its rule. In each partition, adjacent files are rewritten together, as
    long as their size is at most the target. A file that is larger than the target, or has no neighbour to go with, is left alone. Only the dry run, the
    checks before the commit and the decision whether to compact depend on this rule.
    """
    import pyarrow

    partition_by = list(table.metadata().partition_columns)
    partitions: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for file in pyarrow.table(table.get_add_actions(flatten=True)).to_pylist():
        partitions[tuple(file[f"partition.{name}"] for name in partition_by)].append(file)
    chosen: list[dict[str, Any]] = []
    is_worthwhile = False
    for files in partitions.values():
        small = [file for file in files if file["size_bytes"] <= target]
        least = max(1, -(-sum(file["size_bytes"] for file in small) // target))
        is_worthwhile = is_worthwhile or len(small) >= 2 * least
        chosen += [file for together in _adjacent(files, target) if len(together) > 1 for file in together]
    return chosen if is_worthwhile else []


def _adjacent(files: Sequence[dict[str, Any]], target: int) -> list[list[dict[str, Any]]]:
    """Divide the files of a partition, in the order of the table, into adjacent ones whose total size is at most the target."""
    divided: list[list[dict[str, Any]]] = [[]]
    size = 0
    for file in files:
        if size + file["size_bytes"] > target:
            divided.append([])
            size = 0
        if file["size_bytes"] <= target:
            divided[-1].append(file)
            size += file["size_bytes"]
    return divided


def _check_partitions(path: str, table: Any, chosen: Sequence[dict[str, Any]]) -> None:
    """
    Refuse partition values that delta-rs would write as other values.

    :raises InvalidError: names the columns. Nothing was written
    """
    types = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
    columns = list(table.metadata().partition_columns)
    unsupported = [name for name in columns if types[name] not in PARTITION_TYPES]
    unsupported += [name for name in columns if any(file[f"partition.{name}"] in NULL_TEXTS for file in chosen)]
    if unsupported:
        summary = "delta-rs may write values of the table's partition columns as other values; nothing was written"
        raise InvalidError(summary, table=path, columns=unsupported, accepted=list(PARTITION_TYPES)).advising(
            "compact the table with OPTIMIZE of another engine, such as Spark."
        )


def _checked_rows(path: str, table: Any, chosen: Sequence[dict[str, Any]]) -> int:
    """
    Return the number of rows of the files. The footers of files are read if their statistics in the table's log do not suffice.

    :raises InvalidError: delta-rs would read, or record in its statistics, other dates or times than a file has. Nothing was written
    """
    import pyarrow.parquet

    fields = {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}
    stored = {name: kind for name, kind in fields.items() if name not in table.metadata().partition_columns}
    dataset = open_dataset(path)

    def rows_of(file: dict[str, Any]) -> int:
        if file["num_records"] is not None and has_near_times(file, stored):
            return int(file["num_records"])
        stat = dataset.stat(unquote(file["path"]))
        if stat is None:
            summary = "a file of the Delta table was not found below the table's path; nothing was written"
            raise InvalidError(summary, table=path, file=file["path"]).advising(
                "restore the file. Compact a shallow clone with OPTIMIZE of another engine."
            )
        with dataset.open(stat) as opened:
            footer = pyarrow.parquet.read_metadata(opened)
            opened.seek(0)
            _check_dates(path, file["path"], [*misread_columns(opened), *_outside_python(footer)])
        return int(footer.num_rows)

    with ThreadPoolExecutor(_READERS) as pool:
        return sum(pool.map(rows_of, chosen))


def _outside_python(footer: Any) -> list[str]:
    """Return the columns with dates or times outside the years 1 to 9999. Clients fail on the bounds that delta-rs would record for them."""
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(group.num_columns)]
    return sorted({chunk.path_in_schema for chunk in chunks if not is_in_python(chunk.statistics)})


def _check_dates(path: str, file: str, columns: list[str]) -> None:
    if columns:
        summary = (
            "a file of the Delta table contains dates or times that a compaction would change; nothing was written"
        )
        raise InvalidError(summary, table=path, file=file, columns=sorted({*columns})).advising(
            f"{REWRITE_BY_SPARK}, or compact the table with OPTIMIZE of Spark."
        )


def _commit(path: str, table: Any, target: int) -> list[TableRewrite]:
    """
    Rewrite the files, and find the entry in the table's log.

    :returns: one value; none if delta-rs found nothing to rewrite
    """
    from deltalake import CommitProperties

    before, compaction = table.version(), SYSTEM_CLOCK.new_id()
    failure: Exception | None = None
    try:
        table.optimize.compact(
            target_size=target, commit_properties=CommitProperties(custom_metadata={COMPACTION: compaction})
        )
    except Exception as error:  # the entry may have been committed, so the table's log is read
        failure = error
    found = _find_entry(path, before + 1, compaction)
    if found is None and failure is not None:
        raise _failed(path, failure) from failure
    if found is None:
        return []
    version, actions = found
    _compare_rows(path, version)
    added, removed = ([action[kind] for action in actions if kind in action] for kind in ("add", "remove"))
    return [
        TableRewrite(
            rows=sum(json.loads(add["stats"])["numRecords"] for add in added),
            files=len(removed),
            bytes=sum(remove["size"] for remove in removed),
            new_files=len(added),
            new_bytes=sum(add["size"] for add in added),
            table_version=str(version),
        )
    ]


def _find_entry(path: str, start: int, compaction: str) -> tuple[int, list[dict[str, Any]]] | None:
    """Return number and actions of the entry of a compaction, at or above ``start``; ``None`` if the table's log does not have it."""
    history, version = History(path), start
    while (actions := history.actions(version)) is not None:
        if any(action.get("commitInfo", {}).get(COMPACTION) == compaction for action in actions):
            return version, actions
        version += 1
    return None


def _failed(path: str, error: Exception) -> StreamsemError:
    """Return the error for a compaction whose entry is not in the table's log."""
    from deltalake.exceptions import CommitFailedError

    facts = {"table": path, "problem": type(error).__name__}
    if is_transient(error):
        summary = "the store did not report the result of a request, and the table's log has no entry of the compaction; no row was changed"
        return UnavailableError(summary, **facts).advising("compact again.")
    if isinstance(error, CommitFailedError):
        summary = (
            "another writer changed the Delta table during the compaction, which was not committed; no row was changed"
        )
        return UnavailableError(summary, **facts).advising(
            "compact again when the other writer has ended. In a DAG, set `retries`."
        )
    summary = "delta-rs cannot compact the Delta table; the table was not changed"
    return DataError(summary, **facts).advising(
        "correct the cause that the exception before this message names, or compact the table with OPTIMIZE of another engine."
    )


def _compare_rows(path: str, version: int) -> None:
    """
    Compare the numbers of rows of the table before and after an entry, if the statistics of all files have them.

    :raises DataError: they differ
    """
    before, after = (_rows(open_at_version(path, number)) for number in (version - 1, version))
    if before is not None and after is not None and before != after:
        summary = "the Delta table has another number of rows after its compaction than before it"
        raise DataError(summary, table=path, table_version=version, before=before, after=after).advising(
            f"restore the table to version {version - 1} (RESTORE) before the next batch is published, and report this error."
        )


def _rows(table: Any) -> int | None:
    import pyarrow

    counts = pyarrow.table(table.get_add_actions())["num_records"].to_pylist()
    return None if None in counts else sum(counts)
