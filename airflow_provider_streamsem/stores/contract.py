"""What a store is, and how one is opened from a URL."""

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
    An object as a listing shows it.

    :param key: relative to the store's root, ``/`` between its parts
    :param bytes: its size
    :param etag: the store's identity of the bytes, ``""`` where it gives none
    :param mtime_ns: when it was last written, nanoseconds UTC (object stores: whole seconds)
    """

    key: str
    bytes: int
    etag: str
    mtime_ns: int


class UnknownAnswerError(UnavailableError):
    """The store did not say whether one request was applied. The commit log sends it again; anyone else fails, and may try again."""

    def __init__(self, key: str, **facts: object) -> None:
        super().__init__("the store gave no clear answer to a request", key=key, **facts)


class Store(Protocol):
    """
    Bytes under keys.

    * Of concurrent :meth:`create` calls for one key at most one returns ``True``, and every later :meth:`read` returns that call's bytes, whole.
    * ``True`` and ``False`` are final answers. Where the store cannot know (409, 5xx, time-out), it raises :class:`UnknownAnswerError` and does not retry.
    * :meth:`list` returns keys in the order of their UTF-8 bytes; it may lag behind, :meth:`read` may not.

    :raises UnknownAnswerError: from any method; the caller sends the same request again
    :raises StoreRefusedError: from any method: not allowed, read-only, no space, no such bucket. The request was not applied
    """

    url: str

    def create(self, key: str, data: bytes) -> bool:
        """Write ``data`` under ``key`` if there is nothing. ``True``: this call did; ``False``: something was there, perhaps an earlier sending."""
        ...

    def read(self, key: str) -> bytes | None:
        """The whole object, or ``None`` where there is none."""
        ...

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Objects whose key starts with ``prefix`` and sorts after ``start_after``, in order, at most ``limit``."""
        ...

    def stat(self, key: str) -> ObjectStat | None:
        """The object's size and identity, or ``None`` where there is none."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; nothing happens where there is none. Only vacuum calls this."""
        ...


def checked_key(key: str) -> str:
    """
    A key that names an object below the store's root.

    :raises InvalidError: it is empty or absolute, or a part of it is empty, ``.`` or ``..``
    """
    if not keys.is_relative(key):
        raise InvalidError("a key must be relative, without empty parts, '.' and '..'", key=key)
    return key


def open_store(url: str) -> Store:
    """
    Open the store of a URL. No request is sent.

    :param url: ``s3://bucket/prefix``, ``memory://name``, ``file:///path`` or an absolute path
    :raises InvalidError: another scheme, a relative path, credentials inside the URL
    """
    if not isinstance(url, str) or not url.strip():
        raise InvalidError(
            "a place must be a URL or an absolute path", given=type(url).__name__ if not isinstance(url, str) else url
        )
    scheme, rest = split_url(url)
    opened: Store = registry.lookup("stores", scheme)(rest)
    return opened


def normalised(url: str) -> str:
    """One spelling of a place: ``scheme://…`` without a slash at its end, an absolute path for ``file``."""
    scheme, rest = split_url(url)
    return rest if scheme == "file" else f"{scheme}://{rest}"


def lineage_name(url: str) -> tuple[str, str]:
    """``(namespace, name)`` of a place, as OpenLineage names datasets: ``("s3://bucket", "prefix")``, ``("file", "/path")``."""
    scheme, rest = split_url(url)
    if scheme == "file":
        return "file", rest
    root, _, name = rest.partition("/")
    return f"{scheme}://{root}", name or "/"


def spark_path(place: str, key: str = "") -> str:
    """A path as Spark's readers take it: glob characters escaped, ``s3`` as ``s3a``."""
    scheme, rest = split_url(place)
    whole = "/".join(filter(None, [f"s3a://{rest}" if scheme == "s3" else rest, key]))
    return "".join("\\" + c if c in "\\*?[]{}^" else c for c in whole)


def split_url(url: str) -> tuple[str, str]:
    """``(scheme, what stands after it)``; a plain absolute path is of scheme ``file``."""
    if os.path.isabs(url):
        return "file", os.path.normpath(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidError("a place must be an absolute path or a URL", given=url.split("?")[0]) from error
    if not registry.knows("stores", parts.scheme):
        raise InvalidError(
            "a place must be an absolute path or a URL of a known scheme",
            given=f"{parts.scheme}:…" if parts.scheme else url.split("?")[0],
            accepted=registry.names("stores"),
        )
    if "@" in parts.netloc:
        raise InvalidError(
            "a place must not hold credentials; give them to the process instead",
            given=f"{parts.scheme}://…@{parts.netloc.split('@')[-1]}",
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidError("a file URL must hold an absolute path", given=url, accepted="file:///path")
        return "file", os.path.normpath(unquote(parts.path))
    if not parts.netloc or parts.query or parts.fragment:
        raise InvalidError(
            "a place must have a bucket or name, and no query",
            given=f"{parts.scheme}://{parts.netloc}{parts.path}",
            accepted="s3://bucket/prefix",
        )
    return parts.scheme, (parts.netloc + parts.path).rstrip("/")
