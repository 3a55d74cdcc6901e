"""Errors for a Spark Connect server that cannot be reached, refuses the client, or ends. Messages of the client may contain the token, so none is quoted."""

from __future__ import annotations

import re
from collections.abc import Sequence

from airflow_provider_streamsem.errors import InvalidError, StageError, StoreRefusedError, StreamsemError

_STATUS = re.compile(r"StatusCode\.([A-Z_]+)")
_TLS = re.compile(r"(?i)ssl handshake failed|WRONG_VERSION_NUMBER|CERTIFICATE_VERIFY_FAILED|tls handshake")
_HANDLE = re.compile(r"INVALID_HANDLE\.(\w+)|INVALID_CURSOR\.(\w+)")


def _status(error: Exception, text: str) -> str:
    """Return the name of gRPC's status, such as ``UNAVAILABLE``; ``""`` if the exception has none."""
    code = str(getattr(getattr(error, "_grpc_status_code", None), "name", ""))
    found = _STATUS.search(text) if code in ("", "UNKNOWN") else None
    return found[1] if found else code


def not_opened(error: Exception, server: str) -> StreamsemError:
    """Return the error for an exception that the client raised while it opened a session on the server ``host:port``."""
    status = _status(error, str(error))
    facts = {"server": server, "error": type(error).__name__, **({"status": status} if status else {})}
    if _TLS.search(str(error)):
        summary = "the Spark Connect server does not speak TLS, or its certificate is not trusted; nothing was staged"
        return InvalidError(summary, **facts).advising(
            "correct `use_ssl` of the Spark connection; remove its password, because a client with a token uses TLS; or add the certificate with "
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH; then run again."
        )
    if status in ("UNAUTHENTICATED", "PERMISSION_DENIED"):
        summary = "the Spark Connect server refuses the user or the token; nothing was staged"
        return StoreRefusedError(summary, **facts).advising(
            "correct the password of the Spark connection, which is the token, or the token of the server (spark.connect.authenticate.token); then run again."
        )
    if status in ("UNIMPLEMENTED", "INTERNAL") or "PROTOCOL" in str(error):
        summary = "the server is not a Spark Connect server, or its version does not fit the client; nothing was staged"
        return InvalidError(summary, **facts).advising(
            "correct host and port of the Spark connection, or install the version of pyspark-client that the server has; then run again."
        )
    if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
        summary = "the Spark Connect server does not respond; nothing was staged"
        return StageError(summary, **facts).advising(
            "check that the server runs, and host, port and `use_ssl` of the Spark connection; then run again."
        )
    return StageError("the client could not open a session on the Spark Connect server; nothing was staged", **facts)


def lost(error: Exception, texts: Sequence[str]) -> tuple[str, str, dict[str, str]] | None:
    """Return what happened, what to do, and facts, if the server ended or lost the session while it worked; ``None`` otherwise."""
    handle = next((found for text in texts if (found := _HANDLE.search(text))), None)
    if handle is not None:
        return (
            "the Spark Connect server lost the session, for example because it was started again",
            "run again. If it fails again, look for the end of the server, or set a longer spark.connect.session.manager.defaultSessionTimeout.",
            {},
        )
    status = _status(error, texts[0]) if texts else ""
    if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"):
        return (
            "the Spark Connect server ended, or does not respond",
            "check that the server runs, and run again: the same range is read again. If it ended, look for an out-of-memory kill, and give it more memory.",
            {"status": status},
        )
    return None
