"""The interface of a store, and functions for the URLs of stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote, urlsplit

from airflow_provider_streamsem import arguments, registry
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.protocol import keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStat:
    """
    The metadata of an object.

    :param key: key relative to the store's root, with ``/`` between path segments
    :param bytes: size in bytes
    :param etag: the store's identifier of the content; ``""`` if the store has none
    :param mtime_ns: time of the last write, in nanoseconds since the epoch (UTC). In S3, the resolution is one second. 0 if the store has none
    :param age_ns: nanoseconds between the last change and the response, by the store's clock; ``None`` if the store does not report its clock. In a file
        system, setting a modification time and renaming are changes
    """

    key: str
    bytes: int
    etag: str
    mtime_ns: int
    age_ns: int | None = field(default=None, compare=False)


class UnknownResultError(UnavailableError):
    """
    The store did not report the result of a request, so whether the request was applied is unknown.

    The commit log sends the same request again. For other callers, this is a retryable error.
    """

    def __init__(self, key: str, **facts: object) -> None:
        super().__init__(
            "the store did not report the result of a request; whether it was applied is unknown", key=key, **facts
        )


class Store(Protocol):
    """
    Protocol of a store. It holds objects, each with bytes under a key.

    * If several processes call :meth:`create` for one key, at most one call returns ``True``. Every later :meth:`read` returns the complete bytes of that call.
    * The results ``True`` and ``False`` are final. If the result of a request is unknown (409, 5xx, timeout), the method raises :class:`UnknownResultError`
      and does not retry.
    * :meth:`list` returns keys in the order of their UTF-8 bytes. A listing may lag behind writes. :meth:`read` must not.

    :raises UnknownResultError: from any method: whether the request was applied is unknown. The commit log sends it again
    :raises StoreRefusedError: from any method: no permission, read-only, no space, no such bucket. The request was not applied
    """

    url: str

    def create(self, key: str, data: bytes) -> bool:
        """
        Write ``data`` under ``key`` if the key is absent, and return ``True``.

        Return ``False`` if the key exists. The existing object may come from an earlier try of the same request.
        """
        ...

    def read(self, key: str) -> bytes | None:
        """Return the complete object, or ``None`` if it does not exist."""
        ...

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """
        Yield the objects whose key starts with ``prefix``, in ascending order of the keys.

        :param limit: maximum number of objects; default: all
        :param start_after: only keys that sort after this one (exclusive)
        """
        ...

    def stat(self, key: str) -> ObjectStat | None:
        """Return the metadata of an object, or ``None`` if it does not exist."""
        ...

    def delete(self, key: str) -> None:
        """Delete an object if it exists. Only vacuum, the store probe and the drop of a fork call this method."""
        ...


def checked_key(key: str) -> str:
    """
    Return the key, after checking that it names an object below the store's root.

    :raises InvalidError: the key is empty or absolute, contains NUL, or one of its path segments is empty, ``.`` or ``..``
    """
    if not keys.is_relative(key):
        raise InvalidError(
            "a key must be a relative path without NUL and without the segments '', '.' and '..'", key=key
        )
    return key


def open_store(url: str) -> Store:
    """
    Open the store of a URL. The function sends no request.

    :param url: ``s3://bucket/prefix``, ``memory://name``, ``file:///path`` or an absolute path
    :raises InvalidError: the URL is not valid; see :func:`split_url`
    """
    if not isinstance(url, str) or not url.strip():
        raise InvalidError(
            "a location must be a URL or an absolute path",
            given=type(url).__name__ if not isinstance(url, str) else url,
        )
    scheme, rest = split_url(url)
    opened: Store = registry.load("stores", scheme)(rest)
    return opened


def normalised(url: str) -> str:
    """Return the canonical form of a location: ``scheme://…`` without a trailing slash; for a file system, the absolute path."""
    scheme, rest = split_url(url)
    return rest if scheme == "file" else f"{scheme}://{rest}"


def overlap(first: str, second: str) -> bool:
    """Return whether two normalised locations are equal, or one contains the other."""
    return f"{first}/".startswith(f"{second}/") or f"{second}/".startswith(f"{first}/")


def lineage_name(url: str) -> tuple[str, str]:
    """Return the OpenLineage ``(namespace, name)`` of a location, such as ``("s3://bucket", "prefix")`` or ``("file", "/path")``."""
    scheme, rest = split_url(url)
    if scheme == "file":
        return "file", rest
    root, _, name = rest.partition("/")
    return f"{scheme}://{root}", name or "/"


def spark_path(location: str, key: str = "") -> str:
    """
    Return the path of a location, or of a key below it, for Spark's readers.

    Glob characters are escaped, and the scheme ``s3`` is replaced with ``s3a``.
    """
    scheme, rest = split_url(location)
    whole = "/".join(filter(None, [f"s3a://{rest}" if scheme == "s3" else rest, key]))
    return "".join("\\" + c if c in "\\*?[]{}^" else c for c in whole)


def hadoop_location(url: str) -> str:
    """Return a location in the form in which Hadoop stores paths: ``s3a://bucket/prefix`` or ``file:/path``, without escapes."""
    scheme, rest = split_url(url)
    return f"s3a://{rest}" if scheme == "s3" else f"file:{rest}"


def check_location(argument: str, value: object) -> str:
    """
    Return the location that a user gave for an argument.

    :raises InvalidError: the value is not text, or not a location. The error names the argument
    """
    location = arguments.text(argument, value)
    try:
        split_url(location)
    except InvalidError as error:
        raise error.with_fields(argument=argument) from error
    return location


def split_url(url: str) -> tuple[str, str]:
    """
    Return the scheme of a location and the rest of it. The scheme of an absolute path is ``file``.

    :raises InvalidError: the location is a relative path, its scheme is unknown, it contains credentials, a query or a fragment, or it has no path or bucket
    """
    if os.path.isabs(url):
        return "file", os.path.normpath(url)
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise InvalidError("a location must be an absolute path or a URL", given=arguments.redacted(url)) from error
    if not registry.knows("stores", parts.scheme):
        raise InvalidError(
            "a location must be an absolute path or a URL with a supported scheme",
            given=f"{parts.scheme}:…" if parts.scheme else arguments.redacted(url),
            accepted=registry.names("stores"),
        )
    if "@" in parts.netloc:
        raise InvalidError(
            "a location must not contain credentials", given=f"{parts.scheme}://…@{parts.netloc.split('@')[-1]}"
        ).advising(
            "set the credentials as environment variables or in an Airflow connection, then run again. No rows were committed."
        )
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise InvalidError("a file URL must contain an absolute path", given=url, accepted="file:///path")
        return "file", os.path.normpath(unquote(parts.path))
    if not parts.netloc or parts.query or parts.fragment:
        raise InvalidError(
            "a location must have a bucket or a name, and no query or fragment",
            given=f"{parts.scheme}://{parts.netloc}{parts.path}",
            accepted="s3://bucket/prefix",
        )
    return parts.scheme, (parts.netloc + parts.path).rstrip("/")
