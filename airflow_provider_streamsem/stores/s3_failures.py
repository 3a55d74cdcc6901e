"""Translates exceptions of boto3's S3 client to errors of this package. This module imports botocore only when an exception is translated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError
from airflow_provider_streamsem.stores.contract import UnknownResultError

_MISSING = {"NoSuchKey", "NoSuchUpload", "404", "NotFound"}
_TRANSIENT_CODES = {"RequestTimeout", "ExpiredToken", "ExpiredTokenException", "RequestExpired", "TokenRefreshRequired"}
_REFUSED_STATUS = {301, 400, 401, 403, 404, 405, 411, 413, 501}
_CREDENTIALS = "in the environment, the profile or the connection, or correct the endpoint; then run again."
_REGION = (
    "the S3 bucket is in another region than that of the request",
    "set the bucket's region with AWS_DEFAULT_REGION or `region_name` of the connection, and correct the endpoint; then run again.",
)
_CAUSES: Mapping[str, tuple[str, str]] = {
    "NoSuchBucket": ("the S3 bucket does not exist", "create the bucket, or correct the location and the endpoint; then run again."),
    "InvalidAccessKeyId": ("S3 does not know the access key", f"correct the access key {_CREDENTIALS}"),
    "SignatureDoesNotMatch": ("the secret access key does not fit the access key", f"correct the secret access key {_CREDENTIALS}"),
    "InvalidToken": ("S3 does not accept the session token", f"renew or remove the session token {_CREDENTIALS}"),
    "RequestTimeTooSkewed": ("the clock of this machine differs too much from that of S3", "set the clock of this machine, and run again."),
    "AccessDenied": (
        "S3 denies the access key this request",
        "grant the access key the permissions of this role (docs/reference/security.md) at the location, then run again; committed versions stay committed.",
    ),
    "403": (
        "S3 denies the access key this request, or does not accept the credentials",
        f"grant the access key permission at the location (docs/reference/security.md), or correct the credentials {_CREDENTIALS}",
    ),
    "PermanentRedirect": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "301": _REGION,
}  # fmt: skip
"""S3's error code → the cause, and what to do. A reply to HEAD has the status as its code."""
_UNTRUSTED = re.compile(
    r"\b(WRONG_VERSION_NUMBER|RECORD_LAYER_FAILURE|CERTIFICATE_VERIFY_FAILED|UNSUPPORTED_PROTOCOL|SSLV3_ALERT_HANDSHAKE_FAILURE)\b"
)
"""Matches errors of TLS after which a retry cannot succeed."""
_USER = re.compile(r"//[^/@]*@")


def translated(error: Exception, key: str, location: str, endpoint: str) -> Exception:
    """Return the exception to raise for a failed request. Unless S3 certainly refused the request, it is an :class:`UnknownResultError`."""
    endpoint = _USER.sub("//", endpoint)
    from botocore.exceptions import (
        ClientError,
        ConnectionError,
        HTTPClientError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
        ResponseStreamingError,
        SSLError,
    )

    if isinstance(error, (NoCredentialsError, NoRegionError, PartialCredentialsError)):
        return StoreRefusedError(
            "the process has incomplete credentials, or no region, for S3; the request was not sent",
            location=location,
            problem=type(error).__name__,
        ).advising(
            "set AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_DEFAULT_REGION for the process, or name a connection of type streamsem by "
            "log_conn_id; then run again."
        )
    if isinstance(error, ClientError):
        if code(error) == "400" and _is_head(
            error
        ):  # the reply has no code that would show whether credentials have expired
            return UnknownResultError(key, location=location, endpoint=endpoint, status=400).advising(
                "run again: expired credentials are renewed then. If it fails again, correct the session token, the region or the endpoint."
            )
        if status(error) not in _REFUSED_STATUS or code(error) in _TRANSIENT_CODES:
            return UnknownResultError(key, location=location, status=status(error), code=code(error))
        return _refused(error, key, location, endpoint)
    untrusted = _UNTRUSTED.search(str(error)) if isinstance(error, SSLError) else None
    if untrusted is not None:
        summary = "the S3 endpoint does not speak TLS, or its certificate is not trusted; the request was not sent"
        return StoreRefusedError(summary, location=location, endpoint=endpoint, problem=untrusted[1]).advising(
            "correct the scheme of the endpoint (http:// or https://), or name the file of the certificates with AWS_CA_BUNDLE; then run again."
        )
    if isinstance(error, (ConnectionError, HTTPClientError, ResponseStreamingError, OSError)):
        unknown = UnknownResultError(key, location=location, endpoint=endpoint, problem=type(error).__name__)
        return unknown.advising(
            "check the endpoint and the network, and run again: the next run continues from the stored state."
        )
    return error


def _refused(error: Exception, key: str, location: str, endpoint: str) -> StoreRefusedError:
    cause, advice = _CAUSES.get(code(error), ("S3 refused a request", ""))
    if code(error).isdigit() and code(error) != "301" and not _is_head(error):
        cause = "the server refused a request without an error code of S3"
        advice = (
            "correct the endpoint: the server is not an S3 server, or a proxy answers in its place; then run again."
        )
    facts = {"location": location, "endpoint": endpoint, "key": key, "status": status(error), "code": code(error)}
    refused = StoreRefusedError(f"{cause}; the request had no effect", **facts)
    return refused.advising(advice) if advice else refused


def _is_head(error: Exception) -> bool:
    return getattr(error, "operation_name", "") == "HeadObject"


def of_settings(error: Exception, given: Mapping[str, object]) -> InvalidError:
    """
    Return the error for an exception of boto3 that created no client.

    :param given: the settings of the access, without secrets
    """
    facts = {name: _USER.sub("//", str(value)) for name, value in given.items() if value}
    summary = "boto3 refuses a setting of the access to S3; no request was sent"
    return InvalidError(summary, problem=type(error).__name__, **facts).advising(
        "correct the endpoint, the region or the profile in the AWS_ variables or the connection; then run again. An endpoint starts with http:// or https://."
    )


def is_missing(error: Exception) -> bool:
    """Return whether an exception means that the object or upload does not exist."""
    return code(error) in _MISSING


def status(error: Exception) -> int:
    """Return the HTTP status of a reply; 0 for an exception without a reply."""
    return int(_response(error).get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code(error: Exception) -> str:
    """Return S3's error code of a reply; ``""`` for an exception without one."""
    return str(_response(error).get("Error", {}).get("Code", ""))


def _response(error: Exception) -> Mapping[str, Any]:
    return getattr(error, "response", None) or {}
