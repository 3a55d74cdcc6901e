"""Describes the visible files of a version for engines that do not read the log: symlink manifests, a view of DuckDB, a scan of Polars."""

from __future__ import annotations

import json
import keyword
from collections.abc import Callable, Sequence

from airflow_provider_streamsem.errors import ConflictError, InvalidError
from airflow_provider_streamsem.readers.files import CommittedFile
from airflow_provider_streamsem.stores.contract import Store

_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
_SAFE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_. ")
_DUCKDB_READERS = {"parquet": "read_parquet", "json": "read_json"}
_POLARS_READERS = {"parquet": "scan_parquet", "json": "scan_ndjson"}


def duckdb_view(name: str, files: Sequence[CommittedFile]) -> str:
    """
    Return the SQL that creates a view of DuckDB over files.

    :raises InvalidError: there are no files, or DuckDB cannot read their format or paths
    """
    reader = _reader(files, _DUCKDB_READERS, "DuckDB")
    # In a pattern, DuckDB does not match a backslash by any means.
    _refuse_paths(files, "DuckDB cannot", lambda path: "\\" in path and path != _of_one_file(path))
    paths = ", ".join("'" + _of_one_file(file.path).replace("'", "''") + "'" for file in files)
    quoted = '"' + name.replace('"', '""') + '"'
    return f"CREATE OR REPLACE VIEW {quoted} AS SELECT * FROM {reader}([{paths}], union_by_name = true, hive_partitioning = false);"


def polars_scan(name: str, files: Sequence[CommittedFile]) -> str:
    """
    Return the Python code of a Polars scan over files.

    :param name: name of the variable; characters that a variable cannot have become ``_``, and so does the start of a name that is no variable
    :raises InvalidError: there are no files, or Polars cannot read their format
    """
    reader = _reader(files, _POLARS_READERS, "Polars")
    variable = "".join(char if char.isascii() and char.isalnum() else "_" for char in name)
    variable = variable if variable.isidentifier() and not keyword.iskeyword(variable) else f"_{variable}"
    # `scan_ndjson` has no option that turns patterns off.
    is_parquet = reader == "scan_parquet"
    missing = ', missing_columns="insert", hive_partitioning=False, glob=False' if is_parquet else ""
    paths = json.dumps([file.path if is_parquet else _of_one_file(file.path) for file in files], ensure_ascii=True)
    return f"import polars as pl\n\n{variable} = pl.{reader}({paths}{missing})"


def _of_one_file(path: str) -> str:
    """Return a pattern that only this path matches. Brackets enclose each character that has a meaning in a pattern."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in path)


def _refuse_paths(files: Sequence[CommittedFile], engine: str, is_refused: Callable[[str], bool]) -> None:
    refused = [file.path for file in files if is_refused(file.path)]
    if refused:
        raise InvalidError(f"{engine} name these files; nothing was printed", path=refused[0]).advising(
            "choose another --format, or a location without backslashes and line breaks."
        )


def _reader(files: Sequence[CommittedFile], readers: dict[str, str], engine: str) -> str:
    formats = sorted({file.format for file in files})
    if not formats:
        raise InvalidError("the sink has no visible files at this version; nothing was printed").advising(
            "choose another --at or --sink."
        )
    if len(formats) > 1 or formats[0] not in readers:
        summary = f"{engine} cannot read these files together; nothing was printed"
        raise InvalidError(summary, formats=formats, accepted=sorted(readers)).advising("use --format symlink.")
    return readers[formats[0]]


def write_symlink_manifests(store: Store, files: Sequence[CommittedFile]) -> list[str]:
    """
    Write a manifest for each partition: a text with the path of one file in each line, as Hive's ``SymlinkTextInputFormat`` reads it.

    The values of the partition columns are in the directories, ``<column>=<value>/manifest``. Without partition columns there is one ``manifest``.

    :param store: the location of the table. Each version needs a location of its own, because manifests are never changed
    :returns: the keys of the manifests
    :raises ConflictError: the location has other manifests
    :raises InvalidError: a path has a line break, so a line of a manifest cannot name it
    """
    _refuse_paths(files, "a manifest cannot", lambda path: "\n" in path or "\r" in path)
    paths: dict[str, list[str]] = {} if files else {"manifest": []}
    for file in files:
        directories = [
            f"{_escaped(name)}={_HIVE_NULL if value is None else _escaped(value)}"
            for name, value in file.partition.items()
        ]
        paths.setdefault("/".join([*directories, "manifest"]), []).append(file.path)
    others = [
        stat.key for stat in store.list("") if stat.key.rpartition("/")[2] == "manifest" and stat.key not in paths
    ]
    if others:
        raise _conflict_error(store, others[0])
    for key, lines in sorted(paths.items()):
        text = "".join(f"{path}\n" for path in sorted(lines)).encode()
        if not store.create(key, text) and store.read(key) != text:
            raise _conflict_error(store, key)
    return sorted(paths)


def _conflict_error(store: Store, key: str) -> ConflictError:
    summary = "the location has manifests of another version; nothing was changed"
    return ConflictError(summary, location=store.url, key=key).advising("give each version a location of its own.")


def _escaped(text: str) -> str:
    """Escape a name or value of a partition as Hive does: ``%`` and two hexadecimal digits for each byte of a character that is not safe."""
    return "".join(char if char in _SAFE else "".join(f"%{byte:02X}" for byte in char.encode()) for char in text)
