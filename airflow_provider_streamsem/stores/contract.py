"""The interface of a store, and functions that open a store from a URL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import unquote, urlsplit

from airflow_provider_streamsem import registry
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.protocol import keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStat:
    """
    An object as returned by a listing.

    :param key: key relative to the store's root, with ``/`` between path segments
    :param bytes: size in bytes
    :param etag: the store's identifier of the content; ``""`` if the store has none
    :param mtime_ns: time of the last write in nanoseconds UTC; object stores have a resolution of one second
    """

    key: str
    bytes: int
    etag: str
    mtime_ns: int


class UnknownAnswerError(UnavailableError):
    """
    The store did not report whether a request was applied.

    The commit log sends the same request again. For other callers this is a retryable error.
    """

    def __init__(self, key: str, **facts: object) -> None:
        super().__init__("the store gave no clear answer to a request", key=key, **facts)


class Store(Protocol):
    """
    Bytes under keys.

    * Of concurrent :meth:`create` calls for one key, at most one returns ``True``. Every later :meth:`read` returns the complete bytes of that call.
    * ``True`` and ``False`` are final. If the store cannot know (409, 5xx, timeout), it raises :class:`UnknownAnswerError` and does not retry.
    * :meth:`list` returns keys in the order of their UTF-8 bytes. A listing may lag behind writes. :meth:`read` must not.

    :raises UnknownAnswerError: from any method. The commit log sends the same request again
    :raises StoreRefusedError: from any method: no permission, read-only, no space, no such bucket. The request was not applied
    """

    url: str

    def create(self, key: str, data: bytes) -> bool:
        """
        Write ``data`` under ``key`` if the key is absent. Returns ``False`` if an object already exists, possibly from an earlier send of the same request.
        """
        ...

    def read(self, key: str) -> bytes | None:
        """Return the complete object, or ``None`` if it does not exist."""
        ...

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Return at most ``limit`` objects whose key starts with ``prefix`` and sorts after ``start_after`` (exclusive), in order of their keys."""
        ...

    def stat(self, key: str) -> ObjectStat | None:
        """Return the size and identity of an object, or ``None`` if it does not exist."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object. Does nothing if it does not exist. Only vacuum calls this method, and the store probe for its own objects."""
        ...


def checked_key(key: str) -> str:
    """
    Return the key if it names an object below the store's root.

    :raises InvalidError: the key is empty or absolute, or one of its path segments is empty, ``.`` or ``..``
    """
    if not keys.is_relative(key):
        raise InvalidError("a key must be relative, without empty parts, '.' and '..'", key=key)
    return key


def open_store(url: str) -> Store:
    """
    Open the store of a URL. Sends no request.

    :param url: ``s3://bucket/prefix``, ``memory://name``, ``file:///path`` or an absolute path
    :raises InvalidError: the scheme is unknown, the path is relative, or the URL contains credentials
    """
    if not isinstance(url, str) or not url.strip():
        raise InvalidError(
            "a location must be a URL or an absolute path",
            given=type(url).__name__ if not isinstance(url, str) else url,
        )
    scheme, rest = split_url(url)
    opened: Store = registry.lookup("stores", scheme)(rest)
    return opened


def normalised(url: str) -> str:
    """Return the canonical form of a location: ``scheme://…`` without a trailing slash, or an absolute path for ``file``."""
    scheme, rest = split_url(url)
    return rest if scheme == "file" else f"{scheme}://{rest}"


def lineage_name(url: str) -> tuple[str, str]:
    """Return the OpenLineage ``(namespace, name)`` of a location, such as ``("s3://bucket", "prefix")`` or ``("file", "/path")``."""
    scheme, rest = split_url(url)
    if scheme == "file":
        return "file", rest
    root, _, name = rest.partition("/")
    return f"{scheme}://{root}", name or "/"


def spark_path(location: str, key: str = "") -> str:
    """Return a path for Spark's readers: glob characters escaped, and ``s3`` replaced with ``s3a``."""
    scheme, rest = split_url(location)
    whole = "/".join(filter(None, [f"s3a://{rest}" if scheme == "s3" else rest, key]))
    return "".join("\\" + c if c in "\\*?[]{}^" else c for c in whole)


def split_url(url: str) -> tuple[str, str]:
    """
    Split a location into its scheme and the rest. An absolute path has the scheme ``file``.

    :raises InvalidError: the scheme is unknown, or the location contains credentials, a query or a fragment, or has no path or bucket
    """
    if os.path.isabs(url):
        return "file", os.path.normpath(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidError("a location must be an absolute path or a URL", given=url.split("?")[0]) from error
    if not registry.knows("stores", parts.scheme):
        raise InvalidError(
            "a location must be an absolute path or a URL of a known scheme",
            given=f"{parts.scheme}:…" if parts.scheme else url.split("?")[0],
            accepted=registry.names("stores"),
        )
    if "@" in parts.netloc:
        raise InvalidError(
            "a location must not hold credentials; give them to the process instead",
            given=f"{parts.scheme}://…@{parts.netloc.split('@')[-1]}",
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidError("a file URL must hold an absolute path", given=url, accepted="file:///path")
        return "file", os.path.normpath(unquote(parts.path))
    if not parts.netloc or parts.query or parts.fragment:
        raise InvalidError(
            "a location must have a bucket or name, and no query",
            given=f"{parts.scheme}://{parts.netloc}{parts.path}",
            accepted="s3://bucket/prefix",
        )
    return parts.scheme, (parts.netloc + parts.path).rstrip("/")
