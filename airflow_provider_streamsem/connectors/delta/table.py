"""
Opens Delta tables, and caches them between the batches of one process (extra ``delta``).

Opening a table reads every entry of its log since the last checkpoint, and so does reading a transaction identifier. The update of a cached table
reads only the entries that were committed since.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.clock import SYSTEM_CLOCK
from airflow_provider_streamsem.connectors.delta import statistics
from airflow_provider_streamsem.connectors.delta.history import encoded, key_of
from airflow_provider_streamsem.errors import (
    InvalidError,
    PublishError,
    SourceChangedError,
    StreamsemError,
    UnavailableError,
)
from airflow_provider_streamsem.stores import s3
from airflow_provider_streamsem.stores.contract import ObjectStat, normalised, split_url
from airflow_provider_streamsem.stores.dataset import open_dataset

OWN_ENTRY = "streamsem"
"""Key in the commit information of an entry. Its value is the application id of the transaction identifier that the entry sets."""
_CLUSTERING = "delta.clustering"
_MAX_CACHED = 8
_MAX_ENTRIES = 1000
_NO_PERMISSION = re.compile(r"\b40[13]\b|AccessDenied|PermissionDenied|Forbidden|Unauthenticated|Unauthorized")
_STORE_FAILURE = re.compile(
    r"object ?store|Generic \w+ error|error sending request|timed out|(request|connect|read|operation)\w* ?timeout|throttl|SlowDown"
    r"|connect(ion)? (error|refused|reset|closed|aborted)|Too ?Many ?Requests|(status|HTTP)\W[^\n]{0,40}\b(429|50[0-9])\b",
    re.IGNORECASE,
)
_cache: dict[str, CachedTable] = {}
_lock = Lock()


class CachedTable:
    """An opened ``deltalake.DeltaTable``. One caller at a time uses it. Between two callers it is in the cache."""

    def __init__(self, path: str, options: Mapping[str, str], table: Any) -> None:
        self.table = table
        self._path, self._options = path, options
        self._own_entry = -1
        self._newest: ObjectStat | None = None
        self._markers: dict[str, tuple[int, int | None]] = {}

    @property
    def id(self) -> str:
        """A recreated table has another id."""
        return str(self.table.metadata().id)

    @property
    def end(self) -> int:
        return int(self.table.version()) + 1

    def transaction(self, app: str) -> int | None:
        """The version in the transaction identifier of an application, as of this version of the table."""
        at: int = self.table.version()
        known = self._markers.get(app)
        if known is None or known[0] != at:
            known = self._markers[app] = at, self.table.transaction_version(app)
        return known[1]

    def restored_since(self, app: str) -> int | None:
        """
        Return the number of the entry that restored the table to a state from before the application's newest entry; ``None`` if there is none.

        A RESTORE is not found if more than 1,000 entries follow it, or if its entry was removed from the table's log.
        """
        at: int = self.table.version()
        if self._own_entry >= at:
            return None
        for limit in (1, _MAX_ENTRIES):
            restored: dict[int, int] = {}
            for entry in self.table.history(limit):
                if entry.get(OWN_ENTRY) == app:
                    return _restore_before(restored, at, own=entry["version"])
                if entry.get("operation") == "RESTORE":
                    to = str((entry.get("operationParameters") or {}).get("version")).strip('"')
                    restored[entry["version"]] = int(to) if to.isdecimal() else -1  # by time, not by version
        return None

    def record_commit(self, marks: Mapping[str, int], app: str, entry: int) -> None:
        """
        Cache the transaction identifiers that the caller's entry has set (``marks``: application id → version).

        Identifiers that were cached at the previous version of the table stay valid if their application id starts with ``app``.
        """
        known = {name: number for name, (at, number) in self._markers.items() if at == entry - 1}
        kept = {name: (entry, number) for name, number in known.items() if name.startswith(app)}
        self._markers |= kept | {name: (entry, number) for name, number in marks.items()}
        self._own_entry = entry

    def create_checkpoint(self) -> None:
        """Write a checkpoint of the table's log. Readers need none, so a failure is ignored."""
        with suppress(Exception):
            self.table.update_incremental()
            self.table.create_checkpoint()

    def keep(self) -> None:
        """Return the table to the cache. Must not be called after a failure, because the state of the table is then unknown."""
        self._newest = self._newest_known()
        with _lock:
            _cache.pop(self._path, None)
            if self._newest is not None:
                _cache[self._path] = self
            for path in list(_cache)[:-_MAX_CACHED]:
                del _cache[path]

    def is_current(self, options: Mapping[str, str]) -> bool:
        """
        Update the table to its newest version. Return whether that succeeded.

        Return ``False`` if the storage options differ, or if the newest entry that the cache knows has changed in the store, as in a recreated table.
        """
        if options != self._options or self._newest_known() != self._newest:
            return False
        try:
            self.table.update_incremental()
        except Exception:
            return False
        return True

    def _newest_known(self) -> ObjectStat | None:
        number = max(self.table.version(), self._own_entry)  # a commit does not advance the version of this DeltaTable
        return open_dataset(self._path).stat(key_of(number))


def _restore_before(restored: Mapping[int, int], at: int, *, own: int) -> int | None:
    """
    Return the RESTORE entry that removed the rows of the entry ``own``, as of version ``at`` of the table; ``None`` if the table has these rows.

    :param restored: number of each RESTORE entry after ``own`` → the version of the table that it restored. That version may be a RESTORE entry too
    """
    while restore := max((entry for entry in restored if entry <= at), default=None):
        at = restored[restore]
        if at < own:
            return restore
    return None


def is_transient(error: BaseException) -> bool:
    """
    Return whether the store failed and the same request may succeed later. A denied permission is not transient.

    deltalake reports a failure of the store during a commit as a failed commit. Only the message shows the difference.
    """
    text = str(error)
    if isinstance(error, PermissionError) or _NO_PERMISSION.search(text):
        return False
    return isinstance(error, (OSError, MemoryError, UnavailableError)) or _STORE_FAILURE.search(text) is not None


def error_class(error: BaseException, refusal: type[StreamsemError]) -> type[StreamsemError]:
    """Return ``UnavailableError`` if the same request may succeed later, else ``refusal``."""
    return UnavailableError if is_transient(error) else refusal


def open_newest(path: str, *, refusal: type[StreamsemError] = UnavailableError) -> CachedTable | None:
    """
    Open the table at its newest version, from the cache if possible; ``None`` if there is no table.

    :param refusal: class of the error to raise if deltalake cannot read the table and a retry cannot help
    """
    options = _store_options(path)
    with _lock:
        cached = _cache.pop(path, None)
    if cached is not None and cached.is_current(options):
        return cached
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
    except ImportError as error:
        raise InvalidError("the deltalake library is not installed").advising(
            "run `pip install 'airflow-provider-streamsem[delta]'`."
        ) from error
    try:
        return CachedTable(path, options, DeltaTable(normalised(path), storage_options=options or None))
    except TableNotFoundError:
        return None
    except Exception as error:
        raise error_class(error, refusal)(
            "the Delta table cannot be opened", table=path, problem=type(error).__name__
        ) from error


@contextmanager
def opened(path: str) -> Iterator[CachedTable]:
    """Open a table at its newest version. Cache it after the block, unless the block failed. Raises ``SourceChangedError`` if there is no table."""
    cached = open_newest(path, refusal=SourceChangedError)
    if cached is None:
        summary = "there is no Delta table at this location; nothing was written"
        raise SourceChangedError(summary, table=path).advising(
            "create or restore the table, or correct the path of the source; then run again."
        )
    yield cached
    cached.keep()


def open_at_version(path: str, version: int) -> Any:
    """Return a ``deltalake.DeltaTable``, not cached. Missing entries or checkpoints of the table's log raise ``SourceChangedError``."""
    from deltalake import DeltaTable

    options = _store_options(path)
    try:
        return DeltaTable(normalised(path), version=version, storage_options=options or None)
    except Exception as error:
        summary = "the Delta table cannot be opened at a version: entries of its log may have been deleted; nothing became visible"
        facts = {"table": path, "version": version, "problem": type(error).__name__}
        raise error_class(error, SourceChangedError)(summary, **facts) from error


def checked_path(name: str, path: object) -> str:
    """Refuse a location that delta-rs and Spark would read in different ways."""
    accepted = "a path without backslashes and %XX, which delta-rs and Spark read in different ways"
    return arguments.text(name, path, pattern=r"(?=.*\S)(?:[^%\\]|%(?![0-9A-Fa-f]{2}))*", accepted=accepted)


def create(path: str, fields: Sequence[Mapping[str, Any]], partition_by: Sequence[str]) -> CachedTable:
    """Create an empty table from columns in Delta's form, or return the table that another process created concurrently."""
    from deltalake import CommitProperties, DeltaTable, Schema

    schema = Schema.from_json(json.dumps({"type": "struct", "fields": fields}))
    options = _store_options(path)
    try:
        table = DeltaTable.create(
            normalised(path),
            schema,
            mode="error",
            partition_by=list(partition_by),
            configuration=statistics.properties(fields, partition_by),
            storage_options=options or None,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
    except Exception as error:
        cached = open_newest(path)
        if cached is None:
            summary = "the Delta table cannot be created; nothing of the batch is in it"
            raise error_class(error, PublishError)(summary, table=path, problem=type(error).__name__) from error
        return cached
    return CachedTable(path, options, table)


def create_clustered(path: str, fields: Sequence[Mapping[str, Any]], cluster_by: Sequence[str]) -> CachedTable:
    """
    As :func:`create`, with clustering columns. delta-rs cannot create such a table, so this function writes the first entry of its log.

    See *Clustered Table* in the Delta protocol.
    """
    is_ntz = "timestamp_ntz" in json.dumps(fields)
    features = ["appendOnly", "clustering", "domainMetadata", "invariants", *(["timestampNtz"] if is_ntz else [])]
    reader = {"minReaderVersion": 3, "readerFeatures": ["timestampNtz"]} if is_ntz else {"minReaderVersion": 1}
    domain = {"clusteringColumns": [[name] for name in cluster_by], "domainName": _CLUSTERING}
    lines: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": SYSTEM_CLOCK.now_ms(), "operation": "CREATE TABLE"}},
        {"protocol": {**reader, "minWriterVersion": 7, "writerFeatures": features}},
        {
            "metaData": {
                "id": str(uuid.UUID(SYSTEM_CLOCK.new_id())),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": statistics.properties(_first(fields, cluster_by), ()),
                "createdTime": SYSTEM_CLOCK.now_ms(),
            }
        },
        {"domainMetadata": {"domain": _CLUSTERING, "configuration": json.dumps(domain), "removed": False}},
    ]
    open_dataset(path).create(key_of(0), encoded(lines))
    created = open_newest(path)
    assert created is not None  # this process or another one has created it
    return created


def _first(fields: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Columns by which a table is clustered must have statistics."""
    return sorted(fields, key=lambda field: field["name"] not in names)


def _store_options(path: str) -> dict[str, str]:
    """In deltalake's form. A local table needs none, so no credentials are resolved for it."""
    if split_url(path)[0] != "s3":
        return {}
    access = s3.resolved()
    options = {
        "aws_endpoint_url": access.endpoint_url,
        "aws_region": access.region_name,
        "aws_access_key_id": access.access_key_id,
        "aws_secret_access_key": access.secret_access_key,
        "aws_session_token": access.session_token,
        "aws_allow_http": "true" if (access.endpoint_url or "").startswith("http://") else None,
    }
    return {name: value for name, value in options.items() if value is not None}
