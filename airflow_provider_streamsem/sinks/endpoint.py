"""One HTTP endpoint, and what an answer of it proves. ``requests``, which Airflow itself needs, is imported on first use."""

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
from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.errors import InvalidError, UnavailableError

_AT_ONCE_BYTES = 65_536
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
# What Airflow's Http provider reads of a connection's extra besides headers; all else there is a header.
_OWN = ("verify", "cert", "proxies")
_LEFT = ("timeout", "allow_redirects", "stream", "max_redirects", "check_response", "trust_env")
NOT_PERFORMED = (425, 429)
"""statuses by which a server says that it refused a call before it performed anything, and that the call may be sent again (RFC 8470, RFC 6585)"""
NOT_PERFORMED_IF_DATED = (503,)
"""statuses that say the same only together with a ``Retry-After`` (RFC 9110); without one a server may have failed half-way"""
TURNED_AWAY = (401, 403, 404, 405, 407)
"""statuses by which a server refuses the caller, whatever the record: credentials, address or method are wrong"""
_UNCLEAR = (408,)
_NO_SECRETS = ("accept", "accept-language", "content-type", "user-agent")
NOT_PERFORMED_TEXT = f"{', '.join(map(str, (*TURNED_AWAY, *NOT_PERFORMED)))}, {', '.join(map(str, NOT_PERFORMED_IF_DATED))} with Retry-After"
_LONGEST_WAIT_S = 1e9


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a call's answer proves.

    ``done``: it was performed. ``refused``: it was not, and never will be. ``turned_away``: it was not, since the caller is refused. ``deferred``: it was not,
    and may be sent again later. ``unsent``: no connection was made. ``redirect``: the endpoint names another address, which is never called. ``unclear``: a
    timeout, a lost connection, a failing server: it may have been performed.

    :attr retry_after_s: seconds after which a deferred call may be sent again, where the endpoint says so
    """

    kind: Literal["done", "refused", "turned_away", "deferred", "unsent", "redirect", "unclear"]
    status: int = 0
    problem: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class Address:
    """Where calls go, and with which secrets. Its ``repr`` shows none."""

    url: str
    login: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: Any = field(default=None, repr=False)
    cert: Any = field(default=None, repr=False)
    proxies: Any = field(default=None, repr=False)

    @property
    def sends_secrets_in_clear(self) -> bool:
        """Whether login, password or a header that may be a credential are sent without encryption."""
        is_secret = bool(self.login or self.password) or any(name.lower() not in _NO_SECRETS for name in self.headers)
        return is_secret and urlsplit(self.url).scheme == "http"

    @property
    def shown(self) -> str:
        """The URL for people: without its query, which may hold what is nobody's business."""
        return self.url.split("?")[0]


def address(found: Connection, endpoint: str) -> Address:
    """
    The address of an ``endpoint`` of an Airflow connection of type ``http``, read as Airflow's Http provider reads it.

    :raises InvalidError: it names no host, or holds a header that cannot be sent
    """
    if not found.host:
        raise InvalidError("an http connection must have a host", conn_id=found.conn_id)
    base = found.host if "://" in found.host else f"{found.schema or 'http'}://{found.host}"
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise InvalidError("the host of an http connection is not acceptable", conn_id=found.conn_id)
    if found.port and parts.port is None:
        base = parts._replace(netloc=f"{parts.netloc}:{found.port}").geturl()
    given = {name: value for name, value in found.extra.items() if name not in (*_OWN, *_LEFT)}
    for name, value in given.items():
        sendable = isinstance(value, str) and re.fullmatch(r"[ -~\t]*", value) and value == value.strip()
        if not re.fullmatch(_TOKEN, name) or not sendable:
            raise InvalidError(
                "the extra of an http connection holds headers, and one cannot be sent", conn_id=found.conn_id
            )
    return Address(
        url=f"{base.rstrip('/')}/{endpoint.lstrip('/')}" if endpoint else base,
        login=found.login,
        password=found.password,
        headers=given,
        **{name: found.extra.get(name) for name in _OWN},
    )


class Endpoint:
    """
    Calls to one address, each made once: nothing is sent again, and no redirect is followed.

    :param method: ``POST``, ``PUT`` or ``PATCH``
    :param timeout_s: how long to wait for a connection, and then for the answer
    :param clock: the time to which a ``Retry-After`` that is a date is compared, where the answer has no ``Date``
    """

    def __init__(self, at: Address, method: str, timeout_s: int, clock: Clock) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self._at, self._method, self._timeout_s, self._clock = at, method, timeout_s, clock
        self._session = requests.Session()
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=0))
        self._session.headers.update({**at.headers, "Content-Type": "application/json"})
        # Without any, requests would look for credentials in ~/.netrc.
        auth: Any = (at.login.encode(), at.password.encode()) if at.login or at.password else _as_it_is
        self._session.auth = auth
        self._settings = self._session.merge_environment_settings(at.url, at.proxies or {}, None, at.verify, at.cert)

    def __enter__(self) -> Endpoint:
        """The endpoint."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the connections."""
        self._session.close()

    def reach(self) -> None:
        """
        Find out that somebody listens, without a call. Behind a proxy nothing is asked.

        :raises UnavailableError: nobody does
        """
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
                "nobody listens at the endpoint; no call was made",
                endpoint=self._at.shown,
                problem=type(error).__name__,
            ) from None

    def call(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        """Make one call. Never raises for what the network or the endpoint does."""
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
            # The error itself is dropped: its text may hold a header or a query.
            return Answer("unsent" if _is_unsent(error) else "unclear", problem=type(error).__name__)
        status = response.status_code
        after_s = retry_after_s(response.headers, self._clock.now_ms())
        with suppress(Exception):
            # A short body is read, so that the connection can be used again; the status says all.
            response.raw.read(_AT_ONCE_BYTES)
        response.close()
        if 200 <= status < 300:
            return Answer("done", status)
        if 300 <= status < 400:
            return Answer("redirect", status)
        if status in NOT_PERFORMED or (status in NOT_PERFORMED_IF_DATED and after_s is not None):
            return Answer("deferred", status, retry_after_s=after_s)
        if status in TURNED_AWAY:
            return Answer("turned_away", status)
        if 400 <= status < 500 and status not in _UNCLEAR:
            return Answer("refused", status)
        return Answer("unclear", status)


def retry_after_s(headers: Mapping[str, str], now_ms: int) -> float | None:
    """
    The seconds that ``Retry-After`` asks for, as a number of seconds or an HTTP date; ``None`` where it is missing or neither.

    A date is compared to the answer's own ``Date``, so that the two clocks need not agree.
    """
    text = headers.get("Retry-After", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", text):
        return float(text)
    until_ms = _date_ms(text)
    if until_ms is None:
        return None
    since_ms = _date_ms(headers.get("Date", ""))
    return min(max(0.0, (until_ms - (now_ms if since_ms is None else since_ms)) / 1000), _LONGEST_WAIT_S)


def _date_ms(text: str) -> int | None:
    try:
        found = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return None
    aware = found if found.tzinfo is not None else found.replace(tzinfo=timezone.utc)
    return int(aware.timestamp() * 1000)


def _is_unsent(error: Exception) -> bool:
    """Whether a call surely failed before the first byte of it was sent: no connection, or a certificate that does not hold."""
    from requests import exceptions as failures
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    if not isinstance(error, failures.RequestException):
        return isinstance(
            error, OSError
        )  # a file of certificates is missing; requests wraps all that a connection raises
    if isinstance(
        error, (failures.ConnectTimeout, failures.InvalidHeader, failures.InvalidSchema, failures.InvalidURL)
    ):
        return True
    reason = getattr(next(iter(error.args), None), "reason", None)
    # A connection that a proxy has closed after the call is an error of the proxy, too: only the cause tells the two apart.
    cause = getattr(reason, "original_error", reason)
    if isinstance(error, failures.SSLError):
        cause = next(iter(getattr(reason, "args", ())), None)
    return isinstance(cause, (ConnectTimeoutError, NewConnectionError, ssl.SSLCertVerificationError))


def _as_it_is(request: Any) -> Any:
    return request
