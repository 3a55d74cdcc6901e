"""One HTTP endpoint, and what an answer of it proves. ``requests``, which Airflow itself needs, is imported on first use."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from airflow_provider_streamsem.connections import Connection
from airflow_provider_streamsem.errors import InvalidError, UnavailableError

_AT_ONCE_BYTES = 65_536
_TOKEN = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
# What Airflow's Http provider reads of a connection's extra besides headers; all else there is a header.
_OWN = ("verify", "cert", "proxies")
_LEFT = ("timeout", "allow_redirects", "stream", "max_redirects", "check_response", "trust_env")
_LATER = (408, 425, 429)
_OF_THE_CALLER = (401, 403, 404, 405, 407)


@dataclass(frozen=True, slots=True)
class Answer:
    """
    What a call's answer proves.

    ``done``: it was performed. ``refused``: it was not, and never will be. ``redirect``: somebody else should be asked, whom nobody asks. ``unclear``: a
    time-out, a lost connection, a failing server: it may have been performed.
    """

    kind: Literal["done", "refused", "redirect", "unclear"]
    status: int = 0
    problem: str = ""

    @property
    def is_about_the_caller(self) -> bool:
        """Whether any other record would be answered so, too: credentials, address or method are wrong."""
        return self.kind == "redirect" or self.status in _OF_THE_CALLER


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
    """

    def __init__(self, at: Address, method: str, timeout_s: int) -> None:
        import requests
        from requests.adapters import HTTPAdapter

        self._at, self._method, self._timeout_s = at, method, timeout_s
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
            # Whatever it says, the call may have been performed. The error itself is dropped: its text may hold a header or a query.
            return Answer("unclear", problem=type(error).__name__)
        status = response.status_code
        with suppress(Exception):
            # A short body is read, so that the connection can be used again; the status says all.
            response.raw.read(_AT_ONCE_BYTES)
        response.close()
        if 200 <= status < 300:
            return Answer("done", status)
        if 300 <= status < 400:
            return Answer("redirect", status)
        if 400 <= status < 500 and status not in _LATER:
            return Answer("refused", status)
        return Answer("unclear", status)


def _as_it_is(request: Any) -> Any:
    return request
