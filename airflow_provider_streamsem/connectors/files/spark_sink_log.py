"""
Reads ``_spark_metadata``, the log in which the file sink of Structured Streaming records the files of its committed batches.

A directory with this log also has files of batches that failed or were repeated. Spark's own readers skip them, and so does the files source.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from urllib.parse import SplitResult, unquote, urlsplit

from airflow_provider_streamsem.errors import DataError
from airflow_provider_streamsem.stores.contract import Store, split_url

PREFIX = "_spark_metadata/"
_BATCH = re.compile(r"_spark_metadata/([0-9]{1,18})(\.compact)?")


def committed(store: Store, keys: Iterable[str], location: str) -> set[str] | None:
    """
    Return the keys of the files that the log names; ``None`` without such a log. An incomplete or unknown log is refused (``DataError``).

    The newest compacted batch has the files of all earlier batches, and each later batch has its own.
    """
    found = [match for key in keys if (match := _BATCH.fullmatch(key)) is not None]
    if not found:
        return None
    compacted = max((int(match[1]) for match in found if match[2]), default=-1)
    later = sorted(int(match[1]) for match in found if not match[2] and int(match[1]) > compacted)
    if later != list(range(compacted + 1, compacted + 1 + len(later))):
        raise _error("a batch of the log is missing", location, batches=later[:20])
    names = [f"{PREFIX}{compacted}.compact"] if compacted >= 0 else []
    names += [f"{PREFIX}{batch}" for batch in later]
    return {path for name in names for path in _files(store, name, location)}


def _files(store: Store, name: str, location: str) -> Iterable[str]:
    # A path may contain any character but a line feed, at which Spark separates the lines.
    version, *lines = (store.read(name) or b"").removesuffix(b"\n").split(b"\n")
    if version != b"v1":
        raise _error("a batch of the log is missing or has another version than v1", location, file=name)
    for line in lines:
        try:
            entry = json.loads(line)
            path, action = entry["path"], entry["action"]
            if not isinstance(path, str):
                raise TypeError
            parts = urlsplit(path)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _error("a line of the log is not valid", location, file=name) from None
        if action != "add":
            raise _error("the log has an action that is not known", location, file=name, action=str(action)[:100])
        yield _relative(parts, location, name)


def _relative(parts: SplitResult, location: str, name: str) -> str:
    """Spark records a URL with percent-encoded characters."""
    root = split_url(location)[1].rstrip("/")
    absolute = unquote(f"{parts.netloc}{parts.path}") if parts.scheme not in ("", "file") else unquote(parts.path)
    if not absolute.startswith(f"{root}/"):
        raise _error(
            "the log names files of another directory, so the directory was moved or copied", location, file=name
        )
    return absolute.removeprefix(f"{root}/")


def _error(summary: str, location: str, **facts: object) -> DataError:
    message = f"the log of the streaming query that wrote this directory (_spark_metadata) cannot be used: {summary}; nothing was written"
    return DataError(message, location=location, **facts).advising(
        "restore the log. Without it, only the query's author knows which files are committed: move those to another directory, and read that."
    )
