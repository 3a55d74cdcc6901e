"""Where data files lie: a store that engines write to by paths of their own, and whose objects are looked into without reading them whole."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterable
from functools import cached_property
from typing import Any, BinaryIO, Protocol, cast

from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.stores.contract import ObjectStat, Store, split_url
from airflow_provider_streamsem.stores.local import LocalStore
from airflow_provider_streamsem.stores.s3 import S3Store, client, is_missing

_TAIL_BYTES = 65_536
_ATTEMPTS = 5
_BLOCK_BYTES = 8 << 20


class Dataset(Store, Protocol):
    """A store with what data files need."""

    def engine_path(self, key: str) -> str:
        """The place of a key as Spark's writer takes it."""
        ...

    def open(self, stat: ObjectStat) -> BinaryIO:
        """The object for reading at any position; it must not change meanwhile."""
        ...

    def directories(self, prefix: str) -> list[str]:
        """The names right below ``prefix`` (which ends with ``/``) that have anything below them, half-written objects included."""
        ...

    def make_durable(self, keys: Iterable[str], prefix: str) -> None:
        """
        Return when the objects under ``prefix`` survive a power cut.

        :raises StoreRefusedError: they may not
        """
        ...

    def remove_tree(self, prefix: str) -> None:
        """Remove all below ``prefix``, half-written objects included. Only vacuum calls this."""
        ...


class LocalDataset(LocalStore):
    """Data files in a directory. Other users may read them where the umask lets them."""

    _other_users = 0o007

    def engine_path(self, key: str) -> str:
        """An absolute path."""
        return os.path.join(self.root, key.rstrip("/"))

    def open(self, stat: ObjectStat) -> BinaryIO:
        """The file."""
        return open(self._path(stat.key), "rb", opener=self._opener)

    def directories(self, prefix: str) -> list[str]:
        """Directories below a directory; not links to directories."""
        try:
            with os.scandir(self._directory(prefix)) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def make_durable(self, keys: Iterable[str], prefix: str) -> None:
        """The outcome is durable, so what it names must be: a file that Spark wrote may still be in the page cache."""
        directories = {os.path.join(self.root, prefix.rstrip("/"))}
        for key in keys:
            _sync(os.path.join(self.root, key))
            directories.add(os.path.dirname(os.path.join(self.root, key)))
        upwards = set()
        for directory in directories:
            while len(directory) >= len(self.root) and os.path.isdir(directory) and directory not in upwards:
                upwards.add(directory)
                directory = os.path.dirname(directory)
        for directory in upwards:
            _sync(directory)

    def remove_tree(self, prefix: str) -> None:
        """Remove a directory. A zombie may still write there; the next vacuum finds what is left."""
        shutil.rmtree(self._directory(prefix), ignore_errors=True)


def _sync(path: str) -> None:
    flags = os.O_RDONLY | (os.O_DIRECTORY if os.path.isdir(path) else 0)
    try:
        descriptor = os.open(path, flags)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StoreRefusedError("a staged file could not be made durable; nothing became visible", file=path) from error


class S3Dataset(S3Store):
    """Data files in a bucket. Reading and deleting may be repeated, so boto3's own retries are on."""

    @cached_property
    def _client(self) -> Any:
        return self._given or client(self._access, attempts=_ATTEMPTS)

    def engine_path(self, key: str) -> str:
        """A path of Hadoop's S3A file system."""
        return f"s3a://{self.bucket}/{self.prefix}{key.rstrip('/')}"

    def open(self, stat: ObjectStat) -> BinaryIO:
        """By ranged reads, the end first: footers lie there."""
        return cast(BinaryIO, io.BufferedReader(_S3File(self, stat), _BLOCK_BYTES))

    def directories(self, prefix: str) -> list[str]:
        """Common prefixes, those of unfinished uploads included."""
        place = self.prefix + prefix
        found: set[str] = set()
        for method in ("list_objects_v2", "list_multipart_uploads"):
            for page in self._pages(method, Prefix=place, Delimiter="/"):
                found |= {item["Prefix"][len(place) :].rstrip("/") for item in page.get("CommonPrefixes", [])}
        return sorted(found)

    def make_durable(self, keys: Iterable[str], prefix: str) -> None:
        """S3 answers only what is durable."""

    def remove_tree(self, prefix: str) -> None:
        """Delete objects, and end the uploads that nobody will finish: they cost money and no listing of objects shows them."""
        for page in self._pages("list_multipart_uploads", Prefix=self._name(prefix)):
            for upload in page.get("Uploads", []):
                self._end(upload["Key"], upload["UploadId"])
        for stat in list(self.list(prefix)):
            if keys.is_relative(stat.key.removesuffix("/")):  # what no writer made is not ours to delete
                self.delete(stat.key)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Bytes ``[start, end)`` of an object that is there."""
        answer = self._ask("get_object", Key=self._name(key), Range=f"bytes={start}-{end - 1}")
        try:
            data: bytes = answer["Body"].read()
        except Exception as error:
            raise self._translated(error, key) from error
        return data

    def _end(self, key: str, upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
        except Exception as error:
            if not is_missing(error):  # somebody else ended it
                raise self._translated(error, key) from error

    def _pages(self, method: str, **request: Any) -> Iterable[Any]:
        try:
            yield from self._client.get_paginator(method).paginate(Bucket=self.bucket, **request)
        except Exception as error:
            raise self._translated(error, request.get("Prefix", "")) from error

    def _ask(self, method: str, **request: Any) -> Any:
        try:
            return getattr(self._client, method)(Bucket=self.bucket, **request)
        except Exception as error:
            raise self._translated(error, request.get("Key", "")) from error


class _S3File(io.RawIOBase):
    """An object as a file. Its last bytes are read once and kept."""

    def __init__(self, dataset: S3Dataset, stat: ObjectStat) -> None:
        self._dataset = dataset
        self._stat = stat
        self._at = 0
        self._tail: bytes | None = None

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._stat.bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        end = min(self._at + len(buffer), self._stat.bytes)
        if end <= self._at:
            return 0
        tail_at = max(0, self._stat.bytes - _TAIL_BYTES)
        if self._at >= tail_at:
            if self._tail is None:
                self._tail = self._dataset.read_range(self._stat.key, tail_at, self._stat.bytes)
            data = self._tail[self._at - tail_at : end - tail_at]
        else:
            data = self._dataset.read_range(self._stat.key, self._at, end)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def open_dataset(url: str) -> Dataset:
    """
    The dataset at a place. No request is sent.

    :param url: ``s3://bucket/prefix``, ``file:///path`` or an absolute path
    :raises InvalidError: a place of another kind
    """
    scheme, rest = split_url(url)
    if scheme == "file":
        return LocalDataset(rest)
    if scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        return S3Dataset(bucket, prefix)
    raise InvalidError(
        "data files cannot lie at a place of this kind",
        given=url,
        accepted=["/path", "file:///path", "s3://bucket/prefix"],
    )
