"""Datasets: stores for data files. Spark writes to them by path, and readers can read byte ranges of an object."""

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
from airflow_provider_streamsem.stores.s3 import S3Store, client
from airflow_provider_streamsem.stores.s3_failures import is_missing

_TAIL_BYTES = 65_536
_ATTEMPTS = 5
_BLOCK_BYTES = 8 << 20


class Dataset(Store, Protocol):
    """Protocol of a store with the additional operations that data files require."""

    def engine_path(self, key: str) -> str:
        """Return the path of a key for Spark's writer."""
        ...

    def open(self, stat: ObjectStat) -> BinaryIO:
        """Open an object for reading with random access. The object must not change while it is open."""
        ...

    def directories(self, prefix: str) -> list[str]:
        """
        Return the names of the directories directly below a prefix. A directory with only unfinished uploads is included.

        :param prefix: must end with ``/``
        """
        ...

    def make_durable(self, keys: Iterable[str], prefix: str) -> None:
        """
        Make objects durable. After the call they survive a power failure.

        :raises StoreRefusedError: an object could not be made durable
        """
        ...

    def remove_tree(self, prefix: str) -> None:
        """Delete all objects and unfinished uploads below ``prefix``. Only vacuum calls this method, and a publisher for its private copy of a table."""
        ...


class LocalDataset(LocalStore):
    """Data files in a directory. Other users can read them if the umask allows it, unlike the files of a log."""

    _other_users_mode = 0o007

    def engine_path(self, key: str) -> str:
        return os.path.join(self.root, key.rstrip("/"))

    def open(self, stat: ObjectStat) -> BinaryIO:
        return open(self._path(stat.key), "rb", opener=self._open_existing)

    def directories(self, prefix: str) -> list[str]:
        """Return the names of the subdirectories of a directory. Symbolic links are left out."""
        try:
            with os.scandir(self._directory(prefix)) as entries:
                return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except FileNotFoundError:
            return []

    def make_durable(self, keys: Iterable[str], prefix: str) -> None:
        """Sync the files and their directories. Files that Spark wrote may be only in the page cache, and the outcome must not be durable before them."""
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
        """Delete a directory. A zombie may write new files there afterwards. The next vacuum deletes these."""
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
    """Data files in a bucket. boto3's retries are enabled, because this class only reads and deletes, and both are idempotent."""

    @cached_property
    def _client(self) -> Any:
        return self._given_client or client(self._access, attempts=_ATTEMPTS)

    def engine_path(self, key: str) -> str:
        """Return the path of a key for Hadoop's S3A file system."""
        return f"s3a://{self.bucket}/{self.prefix}{key.rstrip('/')}"

    def open(self, stat: ObjectStat) -> BinaryIO:
        """Open an object for reads of byte ranges. The first read near the end caches the last 64 KiB, which usually contain the footer of a data file."""
        return cast(BinaryIO, io.BufferedReader(_S3File(self, stat), _BLOCK_BYTES))

    def directories(self, prefix: str) -> list[str]:
        """Return the common prefixes of objects and of unfinished multipart uploads."""
        location = self.prefix + prefix
        names: set[str] = set()
        for method in ("list_objects_v2", "list_multipart_uploads"):
            for page in self._pages(method, Prefix=location, Delimiter="/"):
                names |= {item["Prefix"][len(location) :].rstrip("/") for item in page.get("CommonPrefixes", [])}
        return sorted(names)

    def make_durable(self, keys: Iterable[str], prefix: str) -> None:
        """Do nothing. S3 confirms a write only when it is durable."""

    def remove_tree(self, prefix: str) -> None:
        """Delete objects, and abort unfinished multipart uploads. Uploads use billed storage and do not appear in listings of objects."""
        for page in self._pages("list_multipart_uploads", Prefix=self._name(prefix)):
            for upload in page.get("Uploads", []):
                self._abort_upload(upload["Key"], upload["UploadId"])
        for stat in list(self.list(prefix)):
            if keys.is_relative(stat.key.removesuffix("/")):  # Writers of this package create no other keys.
                self.delete(stat.key)

    def read_range(self, key: str, start: int, end: int) -> bytes:
        """Return the bytes ``[start, end)`` of an existing object."""
        response = self._request("get_object", Key=self._name(key), Range=f"bytes={start}-{end - 1}")
        try:
            data: bytes = response["Body"].read()
        except Exception as error:
            raise self._translated(error, key) from error
        return data

    def _abort_upload(self, key: str, upload_id: str) -> None:
        try:
            self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
        except Exception as error:
            if not is_missing(error):  # If it is missing, another process has aborted it.
                raise self._translated(error, key) from error

    def _pages(self, method: str, **request: Any) -> Iterable[Any]:
        try:
            yield from self._client.get_paginator(method).paginate(Bucket=self.bucket, **request)
        except Exception as error:
            raise self._translated(error, request.get("Prefix", "")) from error

    def _request(self, method: str, **request: Any) -> Any:
        try:
            return getattr(self._client, method)(Bucket=self.bucket, **request)
        except Exception as error:
            raise self._translated(error, request.get("Key", "")) from error


class _S3File(io.RawIOBase):
    """An object as a raw file. It caches the last bytes of the object."""

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
    Open the dataset at a location. The function sends no request.

    :param url: ``s3://bucket/prefix``, ``file:///path`` or an absolute path
    :raises InvalidError: data files cannot be stored at this kind of location
    """
    scheme, rest = split_url(url)
    if scheme == "file":
        return LocalDataset(rest)
    if scheme == "s3":
        bucket, _, prefix = rest.partition("/")
        return S3Dataset(bucket, prefix)
    raise InvalidError(
        "a dataset must be in a directory or in S3",
        given=url,
        accepted=["/path", "file:///path", "s3://bucket/prefix"],
    )
