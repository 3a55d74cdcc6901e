"""Calls an HTTP endpoint and classifies its responses. ``requests``, a dependency of Airflow, is imported on first use."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Any, Literal
from urllib.parse import urlsplit

from airflow_provider_streamsem.clock import Clock
from airflow_provider_streamsem.connections import Connection, http_url
from airflow_provider_streamsem.errors import InvalidError, UnavailableError

_READ_BYTES = 65_536
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
# Keys of a connection's extra that are settings in Airflow's HTTP provider. The sink ignores those in _WITHOUT_EFFECT. All other keys are headers.
_SETTINGS = ("verify", "cert", "proxies")
_WITHOUT_EFFECT = ("timeout", "allow_redirects", "stream", "max_redirects", "check_response", "trust_env")
NOT_PERFORMED = (425, 429)
"""Statuses with which a server reports that it did not perform the call, and that the client may send it again (RFC 8470, RFC 6585)."""
NOT_PERFORMED_IF_RETRY_AFTER = (503,)
"""Statuses that mean the same, but only with a ``Retry-After`` header (RFC 9110). Without it, the server may have performed a part of the call."""
CALLER_REJECTED = (401, 403, 404, 405, 407)
"""Statuses that reject the caller for every record: credentials, address or method are wrong."""
_UNCLEAR = (408,)
_PUBLIC_HEADERS = ("accept", "accept-language", "content-type", "user-agent")
NOT_PERFORMED_TEXT = f"{', '.join(map(str, (*CALLER_REJECTED, *NOT_PERFORMED)))}, {', '.join(map(str, NOT_PERFORMED_IF_RETRY_AFTER))} with Retry-After"
_MAX_WAIT_S = 1e9


@dataclass(frozen=True, slots=True)
class CallResult:
    """
    The result of a call: its kind, and details of the response.

    * ``done``: the endpoint performed the call.
    * ``refused``: the endpoint did not perform the call, and would refuse it again.
    * ``caller_rejected``: the endpoint did not perform the call, because it rejects the caller.
    * ``deferred``: the endpoint did not perform the call. The call may be sent again later.
    * ``unsent``: the call was not sent.
    * ``redirect``: the endpoint redirects to another address. The sink does not follow redirects.
    * ``unclear``: a timeout, a lost connection or a server error. The endpoint may have performed the call.

    :attr status: HTTP status; 0 if there was no response
    :attr problem: class name of the exception; ``""`` if there was a response
    :attr retry_after_s: seconds after which a deferred call may be sent again, if the endpoint sent them
    """

    kind: Literal["done", "refused", "caller_rejected", "deferred", "unsent", "redirect", "unclear"]
    status: int = 0
    problem: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """The URL of the endpoint, with credentials and TLS settings. Its ``repr`` shows no secrets."""

    url: str
    login: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: Any = field(default=None, repr=False)
    cert: Any = field(default=None, repr=False)
    proxies: Any = field(default=None, repr=False)

    @property
    def sends_secrets_in_clear(self) -> bool:
        """Whether the login, the password, or a header that may be a credential would be sent without encryption."""
        is_secret = bool(self.login or self.password) or any(
            name.lower() not in _PUBLIC_HEADERS for name in self.headers
        )
        return is_secret and urlsplit(self.url).scheme == "http"

    @property
    def shown(self) -> str:
        """The URL without its query string, safe to log."""
        return self.url.split("?")[0]


def address(airflow_connection: Connection, endpoint: str) -> Address:
    """Return the address of an Airflow connection of type ``http``, as Airflow's HTTP provider interprets it. ``endpoint`` is below its host."""
    base = http_url(airflow_connection)
    headers = {
        name: value for name, value in airflow_connection.extra.items() if name not in (*_SETTINGS, *_WITHOUT_EFFECT)
    }
    for name, value in headers.items():
        sendable = isinstance(value, str) and re.fullmatch(r"[ -~\t]*", value) and value == value.strip()
        if not re.fullmatch(_TOKEN, name) or not sendable:
            raise InvalidError(
                "the extra of an http connection contains a header that cannot be sent",
                conn_id=airflow_connection.conn_id,
            )
    return Address(
        url=f"{base.rstrip('/')}/{endpoint.lstrip('/')}" if endpoint else base,
        login=airflow_connection.login,
        password=airflow_connection.password,
        headers=headers,
        **{name: airflow_connection.extra.get(name) for name in _SETTINGS},
    )


class Endpoint:
    """
    Makes calls to one address. Each call is sent once, without retries or redirects.

    :param timeout_s: timeout of the connection, and then of the response
    :param clock: the time for a ``Retry-After`` date if the response has no ``Date`` header
    """

    def __init__(self, at: Address, method: str, timeout_s: int, clock: Clock) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self._at, self._method, self._timeout_s, self._clock = at, method, timeout_s, clock
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=0))
        self._session.headers.update({**at.headers, "Content-Type": "application/json"})
        # Without an explicit auth, requests reads credentials from ~/.netrc.
        auth: Any = (at.login.encode(), at.password.encode()) if at.login or at.password else _no_auth
        self._session.auth = auth
        self._settings = self._session.merge_environment_settings(at.url, at.proxies or {}, None, at.verify, at.cert)

    def __enter__(self) -> Endpoint:
        return self

    def __exit__(self, *exc: object) -> None:
        self._session.close()

    def reach(self) -> None:
        """Check that the endpoint accepts TCP connections. Sends no call. With a proxy, checks nothing."""
        import socket

        from requests.utils import select_proxy

        parts = urlsplit(self._at.url)
        if select_proxy(self._at.url, self._settings["proxies"]):
            return
        try:
            where = (parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80))
            socket.create_connection(where, timeout=self._timeout_s).close()
        except (OSError, UnicodeError) as error:
            raise UnavailableError(
                "the endpoint cannot be reached; no call was made",
                endpoint=self._at.shown,
                problem=type(error).__name__,
            ) from None

    def call(self, body: bytes, headers: Mapping[str, str]) -> CallResult:
        """Send one call and classify the response. Errors of the network or the endpoint are returned, never raised."""
        try:
            response = self._session.request(
                self._method,
                self._at.url,
                data=body,
                headers=dict(headers),
                timeout=self._timeout_s,
                allow_redirects=False,
                **{**self._settings, "stream": True},
            )
        except Exception as error:
            # Only the class name is kept, because the text of the error may contain a header or a query string.
            return CallResult("unsent" if _is_unsent(error) else "unclear", problem=type(error).__name__)
        status = response.status_code
        after_s = retry_after_s(response.headers, self._clock.now_ms())
        with suppress(Exception):
            # A connection can be reused only after its body was read. The content is not used.
            response.raw.read(_READ_BYTES)
        response.close()
        if 200 <= status < 300:
            return CallResult("done", status)
        if 300 <= status < 400:
            return CallResult("redirect", status)
        if status in NOT_PERFORMED or (status in NOT_PERFORMED_IF_RETRY_AFTER and after_s is not None):
            return CallResult("deferred", status, retry_after_s=after_s)
        if status in CALLER_REJECTED:
            return CallResult("caller_rejected", status)
        if 400 <= status < 500 and status not in _UNCLEAR:
            return CallResult("refused", status)
        return CallResult("unclear", status)


def retry_after_s(headers: Mapping[str, str], now_ms: int) -> float | None:
    """
    Return the seconds in ``Retry-After``, a number or an HTTP date; ``None`` if it is missing or invalid.

    A date is compared with the ``Date`` header of the response, if it has one, so that the clocks of client and server need not agree.
    """
    text = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    until_ms = _date_ms(text)
    if until_ms is None:
        return None
    since_ms = _date_ms(headers.get("Date", ""))
    return min(max(0.0, (until_ms - (now_ms if since_ms is None else since_ms)) / 1000), _MAX_WAIT_S)


def _date_ms(text: str) -> int | None:
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    aware = date if date.tzinfo is not None else date.replace(tzinfo=timezone.utc)
    return int(aware.timestamp() * 1000)


def _is_unsent(error: Exception) -> bool:
    """Return whether the call certainly failed before it was sent: no connection, an invalid certificate, or an invalid URL or header."""
    from requests import exceptions as failures
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    if not isinstance(error, failures.RequestException):
        # requests wraps every error of a connection in its own exceptions, so an OSError means that a certificate file is missing.
        return isinstance(error, OSError)
    if isinstance(
        error, (failures.ConnectTimeout, failures.InvalidHeader, failures.InvalidSchema, failures.InvalidURL)
    ):
        return True
    reason = getattr(next(iter(error.args), None), "reason", None)
    # requests raises the same proxy error if a proxy closes the connection after the call. Only the cause distinguishes the two.
    cause = getattr(reason, "original_error", reason)
    if isinstance(error, failures.SSLError):
        cause = next(iter(getattr(reason, "args", ())), None)
    return isinstance(cause, (ConnectTimeoutError, NewConnectionError, ssl.SSLCertVerificationError))


def _no_auth(request: Any) -> Any:
    return request
