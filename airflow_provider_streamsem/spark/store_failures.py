"""Recognizes failures of stores in the messages of Spark: a refusal, wrong credentials or settings, and a server that does not respond."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_streamsem.errors import StoreRefusedError

_S3A = "fs.s3a.access.key, fs.s3a.secret.key or the AWS_ variables of driver and executors"
_REFUSED = re.compile(
    r"(AccessControlException|AccessDeniedException|ParentNotDirectoryException|UnknownStoreException|Mkdirs failed to create)[^\n]*"
)
"""Matches exceptions of Hadoop's file systems after which a retry cannot succeed, with the location in their message."""
_UNWRITABLE = re.compile(
    r"\b(?:java\.n?io|org\.apache\.hadoop)\.[\w.$]+: [^\n]{0,600}?"
    r"(No space left on device|Disk quota exceeded|Read-only file system|File name too long|File too large|Permission denied|Too many links)"
    r"|hadoop\.hdfs\.protocol\.(\w*QuotaExceededException)"
)
"""Matches errors of file systems after which a retry cannot succeed, with the reason only, because the name of a partition directory is a value of a record."""
_UNTRUSTED = re.compile(
    r"\bSSL\w*Exception: [^\n]*?(Unsupported or unrecognized SSL message|PKIX path building failed|No subject alternative [a-z ]*|plaintext connection\?)"
)
"""Matches errors of TLS after which a retry cannot succeed."""
_ENDPOINT = re.compile(r"(Custom endpoint `[^`\n]*`|Service: S3, Status Code: (?:405|501)\b)[^\n]{0,80}")
"""Matches errors of a server that is not an S3 server, or of an endpoint that is not a URL."""
_TRANSIENT = re.compile(
    r"\b(AWS(ClientIO|ServiceIO|Status500|ServiceThrottled|NoResponse|Bad)\w*Exception|SdkClientException|Socket\w*Exception|ConnectException|"
    r"UnknownHostException|NoRouteToHostException|InterruptedIOException|HttpHostConnectException|ConnectTimeoutException|SSLException)\b"
)
"""Matches exceptions of Hadoop's file systems and of the network after which a retry may succeed."""
_WRITTEN = re.compile(r"\[TASK_WRITE_FAILED\] Task failed while writing rows to (\S+?)\. ")
_PARTITION = re.compile(r"(/[^/=\s\"']+=)[^/\n\"']*")
_NOISE = re.compile(r", Request ID.*|\n.*", re.DOTALL)
_STORE = re.compile(r"\b((?:s3a|s3|gs|abfss?|wasbs?|hdfs|oss)://[^/\s'`:]+)")
_SERVER = re.compile(
    r"Connect to ([\w.-]+:\d+)|UnknownHostException: ([\w.-]+)(?=$|\n|:)|Unable to execute HTTP request: ([\w-]+(?:\.[\w-]+)+)(?=$|\n)"
)

_CAUSES: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"NoA(?:ws|uth)\w*Exception|CredentialInitializationException|No AWS Credentials"),
        "Spark has no credentials for the store",
        f"set {_S3A}, or correct fs.s3a.aws.credentials.provider; then run again.",
    ),
    (
        re.compile(r"UnknownStoreException"),
        "the bucket of the location does not exist at the endpoint of Spark",
        "create the bucket, or correct the location, or fs.s3a.endpoint and AWS_ENDPOINT_URL; then run again.",
    ),
    (
        re.compile(r"AccessDeniedException: (?:`?)s3a?://|Service: S3, Status Code: 403"),
        "S3 denies Spark access, or does not accept its credentials",
        f"correct {_S3A}, or grant their user permission at the location (docs/reference/security.md); then run again.",
    ),
)
"""What a refusal says → the cause, and what to do."""


def refusal(texts: Sequence[str], state: str, **facts: object) -> StoreRefusedError | None:
    """Return the error for a refusal that a retry cannot change; ``None`` if no message contains one. ``state`` says what is true now."""
    for text in texts:
        if found := _UNTRUSTED.search(text):
            summary = f"the endpoint of a store does not speak TLS, or its certificate is not trusted; {state}"
            return StoreRefusedError(summary, **facts, **_store(text), problem=found[1]).advising(
                "correct the scheme of the endpoint (http:// or https://; S3: fs.s3a.endpoint, AWS_ENDPOINT_URL), or add the certificate to the trust store of "
                "the JVMs; then run again."
            )
        if found := _ENDPOINT.search(text):
            summary = f"the endpoint is not that of an S3 server; {state}"
            return StoreRefusedError(summary, **facts, **_store(text), problem=found[1]).advising(
                "correct fs.s3a.endpoint or AWS_ENDPOINT_URL, a URL with http:// or https://; then run again."
            )
        if found := _REFUSED.search(text):
            quoted = _NOISE.sub("", _PARTITION.sub(r"\1…", found[0]))[:200]
            return _with_cause(texts, state, **facts, refusal=quoted)
        if found := _UNWRITABLE.search(text):
            location = next(filter(None, map(_WRITTEN.search, texts)), None)
            written = {"location": _path_of(location[1])} if location else {}
            return _with_cause((), state, **facts, refusal=found[1] or found[2], **written)
    return None


def _with_cause(texts: Sequence[str], state: str, **facts: object) -> StoreRefusedError:
    for pattern, cause, advice in _CAUSES:
        if any(map(pattern.search, texts)):
            return StoreRefusedError(f"{cause}; {state}", **facts).advising(advice)
    return StoreRefusedError(f"the store refused a read or write of Spark; {state}", **facts)


def is_transient(texts: Sequence[str]) -> bool:
    """Return whether a message shows a failure of a file system or of the network after which a retry may succeed."""
    return any(map(_TRANSIENT.search, texts))


def unavailable(texts: Sequence[str]) -> tuple[str, str, dict[str, str]] | None:
    """Return what happened, what to do, and the facts, if a store did not answer Spark or may answer it later; ``None`` otherwise."""
    text = next((text for text in texts if _TRANSIENT.search(text) and _STORE.search(text)), None)
    if text is None:
        return None
    if "AWSBadRequestException" in text:
        return (
            "S3 refused a request of Spark as invalid",
            "run again: expired credentials are renewed then. If it fails again, correct the session token, the region (fs.s3a.endpoint.region) or the "
            "endpoint.",
            _store(text),
        )
    server = next((next(filter(None, found.groups())) for text in texts if (found := _SERVER.search(text))), None)
    return (
        "a store did not respond to Spark",
        "check the endpoint (S3: fs.s3a.endpoint, AWS_ENDPOINT_URL) and the network of driver and executors, and run again: the same range is read again.",
        {**_store(text), **({"server": server} if server else {})},
    )


def _store(text: str) -> dict[str, str]:
    found = _STORE.search(text)
    return {"store": found[1]} if found else {}


def _path_of(uri: str) -> str:
    from airflow_provider_streamsem.connectors.files.text_lines import plain_path

    return plain_path(uri)
