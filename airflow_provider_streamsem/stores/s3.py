"""
A store in an S3 bucket, by conditional writes (``If-None-Match: *``).

boto3's own retries are off: a retried create would come back as 412 and hide that the first sending was applied. Credentials, region and endpoint come from
an :class:`S3Access` that is in force, and what it leaves open from boto3's default chain (``AWS_*`` variables, profile, instance role). AWS S3
documentation, conditional writes: 412 means that the key exists, 409 that a conflicting request was under way and nothing is decided.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError
from airflow_provider_streamsem.stores.contract import ObjectStat, UnknownAnswerError, checked_key

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30
_MISSING = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}
_PASSING = {"RequestTimeout", "ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_REFUSED_STATUS = {400, 401, 403, 404, 405, 411, 413, 501}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """How S3 is reached. What is ``None`` is left to boto3's default chain. Its ``repr`` shows no secret."""

    endpoint_url: str | None = None
    region_name: str | None = None
    profile_name: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


_DEFAULT = S3Access()
_ACCESS: ContextVar[S3Access] = ContextVar("streamsem_s3_access", default=_DEFAULT)


@contextmanager
def reached_by(access: S3Access) -> Iterator[None]:
    """Reach S3 so while the block runs: logs, datasets, and the files that Spark reads and writes."""
    token = _ACCESS.set(access)
    try:
        yield
    finally:
        _ACCESS.reset(token)


def access() -> S3Access:
    """What is in force."""
    return _ACCESS.get()


class S3Store:
    """
    Objects below a prefix of a bucket.

    :param bucket: its name
    :param prefix: ``""`` or a path without a slash at its end
    :param client: a boto3 S3 client, for tests; default: one of boto3's default chain, made at the first request
    """

    def __init__(self, bucket: str, prefix: str, client: Any = None) -> None:
        self.bucket = bucket
        self.prefix = prefix + "/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._given = client
        self._access = access()  # requests may come from other threads, where another one is in force

    @cached_property
    def _client(self) -> Any:
        return self._given or client(self._access, attempts=1)

    def create(self, key: str, data: bytes) -> bool:
        """PUT with ``If-None-Match: *``; 412 is ``False``."""
        name = self._name(key)
        try:
            self._client.put_object(
                Bucket=self.bucket, Key=name, Body=data, IfNoneMatch="*", ContentType="application/json"
            )
        except Exception as error:
            if _status(error) == 412:
                return False
            raise self._translated(error, key) from error
        return True

    def read(self, key: str) -> bytes | None:
        """GET; 404 is ``None``."""
        name = self._name(key)
        try:
            data: bytes = self._client.get_object(Bucket=self.bucket, Key=name)["Body"].read()
        except Exception as error:
            if is_missing(error):
                return None
            raise self._translated(error, key) from error
        return data

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """ListObjectsV2, page by page."""
        request: dict[str, Any] = {"Bucket": self.bucket, "Prefix": self.prefix + prefix}
        if start_after:
            request["StartAfter"] = self.prefix + start_after
        left = limit
        while left is None or left > 0:
            try:
                page = self._client.list_objects_v2(**request, MaxKeys=1000 if left is None else min(left, 1000))
            except Exception as error:
                raise self._translated(error, prefix) from error
            for item in page.get("Contents", []):
                yield ObjectStat(
                    key=item["Key"][len(self.prefix) :],
                    bytes=item["Size"],
                    etag=item["ETag"].strip('"'),
                    mtime_ns=int(item["LastModified"].timestamp()) * 1_000_000_000,
                )
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]
            left = None if left is None else left - len(page.get("Contents", []))

    def stat(self, key: str) -> ObjectStat | None:
        """HEAD; 404 is ``None``."""
        name = self._name(key)
        try:
            item = self._client.head_object(Bucket=self.bucket, Key=name)
        except Exception as error:
            if is_missing(error):
                return None
            raise self._translated(error, key) from error
        return ObjectStat(
            key=key,
            bytes=item["ContentLength"],
            etag=item["ETag"].strip('"'),
            mtime_ns=int(item["LastModified"].timestamp()) * 1_000_000_000,
        )

    def delete(self, key: str) -> None:
        """DELETE."""
        name = self._name(key)
        try:
            self._client.delete_object(Bucket=self.bucket, Key=name)
        except Exception as error:
            raise self._translated(error, key) from error

    def _name(self, key: str) -> str:
        """The object's name in the bucket. What S3A leaves for a directory ends with a slash."""
        checked_key(key.removesuffix("/"))
        return self.prefix + key

    def _translated(self, error: Exception, key: str) -> Exception:
        """What a failed request means to the caller. Anything but a clear refusal is unknown."""
        from botocore.exceptions import (
            ClientError,
            ConnectionError,
            HTTPClientError,
            NoCredentialsError,
            NoRegionError,
            PartialCredentialsError,
            ResponseStreamingError,
        )

        if isinstance(error, (NoCredentialsError, NoRegionError, PartialCredentialsError)):
            return StoreRefusedError(
                "the process has no complete credentials or region for S3; nothing was sent",
                place=self.url,
                problem=type(error).__name__,
            ).advising(
                "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_DEFAULT_REGION for the process, or name a connection of type streamsem by "
                "log_conn_id; then run again."
            )
        if _code(error) == "NoSuchBucket":
            return StoreRefusedError(
                "the S3 bucket does not exist; nothing was written",
                place=self.url,
                endpoint=self._client.meta.endpoint_url,
                code="NoSuchBucket",
            ).advising("create the bucket, or correct the place and the endpoint; then run again.")
        if isinstance(error, ClientError):
            if _status(error) in _REFUSED_STATUS and _code(error) not in _PASSING:
                return StoreRefusedError(
                    "S3 refused a request; the object was not written",
                    place=self.url,
                    key=key,
                    status=_status(error),
                    code=_code(error),
                )
            return UnknownAnswerError(key, place=self.url, status=_status(error), code=_code(error))
        if isinstance(error, (ConnectionError, HTTPClientError, ResponseStreamingError, OSError)):
            endpoint = self._client.meta.endpoint_url
            return UnknownAnswerError(key, place=self.url, endpoint=endpoint, problem=type(error).__name__)
        return error


def client(given: S3Access, *, attempts: int) -> Any:
    """A boto3 S3 client; one for each way of asking, since making one takes longer than many requests."""
    return _client(attempts, os.getpid(), _surroundings(), given)


def session(given: S3Access) -> Any:
    """A boto3 session of this access; the same one again while the process and its ``AWS_*`` variables stay."""
    return _session(os.getpid(), _surroundings(), given)


def _surroundings() -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))


@lru_cache(maxsize=16)
def _client(attempts: int, process: int, surroundings: tuple[tuple[str, str], ...], given: S3Access) -> Any:
    from botocore.config import Config

    config = Config(
        retries={"total_max_attempts": attempts, "mode": "standard"},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return _session(process, surroundings, given).client("s3", config=config, endpoint_url=given.endpoint_url)


@lru_cache(maxsize=16)
def _session(process: int, surroundings: tuple[tuple[str, str], ...], given: S3Access) -> Any:
    import boto3.session

    return boto3.session.Session(
        aws_access_key_id=given.access_key_id,
        aws_secret_access_key=given.secret_access_key,
        aws_session_token=given.session_token,
        region_name=given.region_name,
        profile_name=given.profile_name,
    )


def resolved() -> S3Access:
    """
    The access that is in force with everything that boto3's default chain adds, as it is now: for libraries that reach S3 without boto3.

    Temporary credentials are a copy: ask again for each use.
    """
    given = access()
    reached = client(given, attempts=1)
    credentials = session(given).get_credentials()
    frozen = None if credentials is None else credentials.get_frozen_credentials()
    standard = reached.meta.endpoint_url.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    return S3Access(
        endpoint_url=None if standard else reached.meta.endpoint_url,
        region_name=reached.meta.region_name,
        access_key_id=None if frozen is None else frozen.access_key,
        secret_access_key=None if frozen is None else frozen.secret_key,
        session_token=None if frozen is None else frozen.token,
    )


def is_missing(error: Exception) -> bool:
    """Whether S3 said that what was asked for is not there."""
    return _code(error) in _MISSING


def _status(error: Exception) -> int:
    return int((getattr(error, "response", None) or {}).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _code(error: Exception) -> str:
    return str((getattr(error, "response", None) or {}).get("Error", {}).get("Code", ""))


def open_s3_store(rest: str) -> S3Store:
    """The store of ``bucket/prefix``."""
    bucket, _, prefix = rest.partition("/")
    if "//" in prefix:
        raise InvalidError("an S3 prefix must not hold an empty part", given=rest)
    return S3Store(bucket, prefix)
