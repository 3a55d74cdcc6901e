"""
A store in an S3 bucket that uses conditional writes (``If-None-Match: *``).

boto3's own retries are disabled. Otherwise boto3 could retry a create that was applied, receive 412, and hide that the first request was applied.

Credentials, region and endpoint come from the active :class:`S3Access`. Values that it does not set come from boto3's default chain (``AWS_*`` variables,
profile, instance role).

According to the documentation of S3, 412 means that the key exists. 409 means that a conflicting request was in progress, so the result is unknown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from email.utils import mktime_tz, parsedate_tz
from functools import cached_property, lru_cache
from typing import Any

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.stores import s3_failures
from airflow_provider_streamsem.stores.contract import ObjectStat, checked_key

CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 30
_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Access:
    """Credentials, region and endpoint for AWS. boto3's default chain supplies the values that are ``None``. The ``repr`` contains no secret."""

    endpoint_url: str | None = None
    region_name: str | None = None
    profile_name: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)


_DEFAULT = S3Access()
_ACCESS: ContextVar[S3Access] = ContextVar("streamsem_s3_access", default=_DEFAULT)


@contextmanager
def use_s3_access(access: S3Access) -> Iterator[None]:
    """Use ``access`` within the block for logs, datasets, and the files that Spark reads and writes."""
    token = _ACCESS.set(access)
    try:
        yield
    finally:
        _ACCESS.reset(token)


def access() -> S3Access:
    """Return the active access, which :func:`use_s3_access` sets; by default an access without values."""
    return _ACCESS.get()


class S3Store:
    """
    A store whose objects are below a prefix of a bucket.

    :param bucket: name of the bucket
    :param prefix: ``""`` or a path without a trailing slash
    :param client: a boto3 S3 client, for tests. By default, the first request creates a client with the access that was active when the store was created
    """

    def __init__(self, bucket: str, prefix: str, client: Any = None) -> None:
        self.bucket = bucket
        self.prefix = prefix + "/" if prefix else ""
        self.url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._given_client = client
        self._access = access()  # Requests may run in other threads, which may have another active access.

    @cached_property
    def _client(self) -> Any:
        return self._given_client or client(self._access, attempts=1)

    def create(self, key: str, data: bytes) -> bool:
        """Send PUT with ``If-None-Match: *``. Return ``False`` on 412."""
        name = self._name(key)
        try:
            self._client.put_object(
                Bucket=self.bucket, Key=name, Body=data, IfNoneMatch="*", ContentType="application/json"
            )
        except Exception as error:
            if s3_failures.status(error) == 412:
                return False
            raise self._translated(error, key) from error
        return True

    def read(self, key: str) -> bytes | None:
        name = self._name(key)
        try:
            data: bytes = self._client.get_object(Bucket=self.bucket, Key=name)["Body"].read()
        except Exception as error:
            if s3_failures.is_missing(error):
                return None
            raise self._translated(error, key) from error
        return data

    def list(self, prefix: str, limit: int | None = None, start_after: str = "") -> Iterator[ObjectStat]:
        """Send ListObjectsV2 once for each page, when the caller has consumed the page before it."""
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
                yield _stat(item["Key"][len(self.prefix) :], item["Size"], item, page)
            if not page.get("IsTruncated"):
                return
            request["ContinuationToken"] = page["NextContinuationToken"]
            left = None if left is None else left - len(page.get("Contents", []))

    def stat(self, key: str) -> ObjectStat | None:
        name = self._name(key)
        try:
            item = self._client.head_object(Bucket=self.bucket, Key=name)
        except Exception as error:
            if s3_failures.is_missing(error):
                return None
            raise self._translated(error, key) from error
        return _stat(key, item["ContentLength"], item, item)

    def delete(self, key: str) -> None:
        name = self._name(key)
        try:
            self._client.delete_object(Bucket=self.bucket, Key=name)
        except Exception as error:
            raise self._translated(error, key) from error

    def _name(self, key: str) -> str:
        """Return the name of an object in the bucket. A trailing slash is valid, because S3A's directory markers have one."""
        checked_key(key.removesuffix("/"))
        return self.prefix + key

    def _translated(self, error: Exception, key: str) -> Exception:
        return s3_failures.translated(error, key, self.url, self._client.meta.endpoint_url)


def _stat(key: str, size: int, item: Mapping[str, Any], response: Mapping[str, Any]) -> ObjectStat:
    """``item`` has ``ETag`` and ``LastModified``. The header ``Date`` of the response is the time by the clock of S3."""
    modified = int(item["LastModified"].timestamp())
    date = parsedate_tz(response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", ""))
    return ObjectStat(
        key=key,
        bytes=size,
        etag=item["ETag"].strip('"'),
        mtime_ns=modified * 1_000_000_000,
        age_ns=None if date is None else (mktime_tz(date) - modified) * 1_000_000_000,
    )


def client(s3_access: S3Access, *, attempts: int) -> Any:
    """
    Return a boto3 S3 client. Clients are cached, because creating one takes longer than most requests.

    :param attempts: maximum number of attempts per request, including the first
    :raises InvalidError: boto3 refuses the endpoint, the region or the profile
    """
    return _client(attempts, os.getpid(), aws_variables(), s3_access)


def session(s3_access: S3Access) -> Any:
    """Return a boto3 session for an access. Sessions are cached per process and per set of ``AWS_*`` variables."""
    return _session(os.getpid(), aws_variables(), s3_access)


def aws_variables() -> tuple[tuple[str, str], ...]:
    """Return the ``AWS_*`` environment variables. A client that was created with other ones is not used again."""
    return tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))


@lru_cache(maxsize=16)
def _client(attempts: int, process: int, aws_variables: tuple[tuple[str, str], ...], s3_access: S3Access) -> Any:
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        retries={"total_max_attempts": attempts, "mode": "standard"},
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        s3_client = _session(process, aws_variables, s3_access).client(
            "s3", config=config, endpoint_url=s3_access.endpoint_url
        )
        if not s3_client.meta.endpoint_url.startswith(("http://", "https://")):
            raise ValueError("the endpoint is not an HTTP URL")
    except (ValueError, BotoCoreError) as error:
        given = {
            "endpoint": s3_access.endpoint_url
            or os.environ.get("AWS_ENDPOINT_URL_S3", os.environ.get("AWS_ENDPOINT_URL")),
            "region": s3_access.region_name or os.environ.get("AWS_DEFAULT_REGION"),
            "profile": s3_access.profile_name or os.environ.get("AWS_PROFILE"),
        }
        raise s3_failures.of_settings(error, given) from error
    return s3_client


@lru_cache(maxsize=16)
def _session(process: int, aws_variables: tuple[tuple[str, str], ...], s3_access: S3Access) -> Any:
    import boto3.session

    return boto3.session.Session(
        aws_access_key_id=s3_access.access_key_id,
        aws_secret_access_key=s3_access.secret_access_key,
        aws_session_token=s3_access.session_token,
        region_name=s3_access.region_name,
        profile_name=s3_access.profile_name,
    )


def resolved() -> S3Access:
    """
    Return the active access, completed with the current values of boto3's default chain, for libraries that access S3 without boto3.

    Temporary credentials expire, so call this function again for each use. ``endpoint_url`` is ``None`` for the standard endpoints of AWS.
    """
    active = access()
    s3_client = client(active, attempts=1)
    credentials = session(active).get_credentials()
    frozen = None if credentials is None else credentials.get_frozen_credentials()
    is_standard = s3_client.meta.endpoint_url.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    return S3Access(
        endpoint_url=None if is_standard else s3_client.meta.endpoint_url,
        region_name=s3_client.meta.region_name,
        access_key_id=None if frozen is None else frozen.access_key,
        secret_access_key=None if frozen is None else frozen.secret_key,
        session_token=None if frozen is None else frozen.token,
    )


def open_s3_store(rest: str) -> S3Store:
    """
    Open the store of ``bucket/prefix``. The function sends no request.

    :raises InvalidError: the bucket's name is not valid, or the prefix contains an empty path segment
    """
    bucket, _, prefix = rest.partition("/")
    if _BUCKET.fullmatch(bucket) is None:
        raise InvalidError(
            "the name of an S3 bucket has letters, digits, dots, hyphens and underscores only", given=bucket
        )
    if "//" in prefix:
        raise InvalidError("an S3 prefix must not contain an empty path segment", given=rest)
    return S3Store(bucket, prefix)
