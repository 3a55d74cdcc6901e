"""
Resolves connection ids to connections.

In an Airflow task, the operator sets the resolver. In other processes, connections come from the environment variables ``AIRFLOW_CONN_<ID>``, in Airflow's
formats: JSON or a URI. The text of a connection never appears in an error, a log message or a spec. Specs contain only connection ids.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, TypeAlias
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from airflow_provider_streamsem.errors import InvalidError


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The fields of an Airflow connection. The ``repr`` contains neither the password nor the extra."""

    conn_id: str
    conn_type: str = ""
    host: str = ""
    port: int | None = None
    login: str = ""
    password: str = field(default="", repr=False)
    schema: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)


Resolver: TypeAlias = Callable[[str], Connection]


def from_environment(conn_id: str) -> Connection:
    """Read a connection from ``AIRFLOW_CONN_<ID>``."""
    name = _variable(conn_id)
    text = os.environ.get(name, "").strip()
    if not text:
        raise InvalidError(
            "the environment variable of the connection is missing or empty", conn_id=conn_id, variable=name
        )
    try:
        return _from_json(conn_id, text) if text.startswith("{") else _from_uri(conn_id, text)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        # The cause is not chained, because its message may quote the connection.
        raise InvalidError(
            "the text of a connection is not valid JSON or a valid URI",
            conn_id=conn_id,
            variable=name,
            problem=type(error).__name__,
        ) from None


def to_environment(conn: Connection) -> tuple[str, str]:
    """Return the name and value of the environment variable from which :func:`from_environment` reads this connection."""
    parts = {name: getattr(conn, name) for name in ("conn_type", "host", "port", "login", "password", "schema")}
    return _variable(conn.conn_id), json.dumps({**parts, "extra": dict(conn.extra)})


def _variable(conn_id: str) -> str:
    return f"AIRFLOW_CONN_{conn_id.upper()}"


def _from_json(conn_id: str, text: str) -> Connection:
    fields = json.loads(text)
    extra = fields.get("extra") or {}
    return Connection(
        conn_id=conn_id,
        conn_type=fields.get("conn_type") or "",
        host=fields.get("host") or "",
        port=int(fields["port"]) if fields.get("port") else None,
        login=fields.get("login") or "",
        password=fields.get("password") or "",
        schema=fields.get("schema") or "",
        extra=dict(json.loads(extra) if isinstance(extra, str) else extra),
    )


def _from_uri(conn_id: str, text: str) -> Connection:
    parts = urlsplit(text)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    extra = dict(json.loads(query["__extra__"])) if "__extra__" in query else query
    return Connection(
        conn_id=conn_id,
        conn_type=parts.scheme.replace("-", "_"),
        host=unquote(parts.hostname or ""),
        port=parts.port,
        login=unquote(parts.username or ""),
        password=unquote(parts.password or ""),
        schema=unquote(parts.path.removeprefix("/")),
        extra=extra,
    )


def refuse_other_properties(conn: Connection, accepted: Collection[str]) -> None:
    """Check that the extra of a connection has only accepted properties, so that no misspelled setting is ignored silently."""
    if refused := sorted(set(conn.extra) - set(accepted)):
        raise InvalidError(
            f"a {conn.conn_type} connection has a property in its extra that is not accepted; no client was started",
            conn_id=conn.conn_id,
            property=refused,
            accepted=sorted(accepted),
        )


def http_url(conn: Connection) -> str:
    """
    Return the URL of an Airflow connection of type ``http`` or ``https``. Host, schema and port mean the same as in Airflow's HTTP provider.

    Airflow's provider ignores the type ``https``, which a connection from the URI ``https://host`` has, uses http and sends the password unencrypted. This
    function uses https for the type ``https``, unless the host or the schema names a scheme.
    """
    if not conn.host:
        raise InvalidError("an http connection must have a host", conn_id=conn.conn_id)
    scheme = conn.schema or ("https" if conn.conn_type == "https" else "http")
    url = conn.host if "://" in conn.host else f"{scheme}://{conn.host}"
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or not _has_valid_port(parts):
        raise InvalidError(
            "the host of an http connection must be a host name or an http(s) URL, without credentials",
            conn_id=conn.conn_id,
        )
    return parts._replace(netloc=f"{parts.netloc}:{conn.port}").geturl() if conn.port and parts.port is None else url


def _has_valid_port(parts: SplitResult) -> bool:
    try:
        return parts.port is None or parts.port > 0
    except ValueError:
        return False


def clear_text_warning(
    sender: str,
    conn_id: str,
    host: str,
    remedy: str,
    *,
    sent: str = "the credentials of connection {conn_id} and every record",
) -> list[str]:
    """
    Return one warning if the credentials of a connection leave the machine unencrypted, else an empty list. A loopback address gets no warning.

    :param sender: what sends the credentials, such as ``sink http``
    :param remedy: what the user must change to enable encryption
    :param sent: the data that is sent; ``{conn_id}`` stands for the connection
    """
    if _is_loopback(host):
        return []
    return [f"{sender}: {sent.format(conn_id=conn_id)} are sent to {host} without encryption. Do: {remedy}"]


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


_RESOLVER: ContextVar[Resolver] = ContextVar("streamsem_connections", default=from_environment)


@contextmanager
def use_resolver(resolver: Resolver) -> Iterator[None]:
    """Resolve connection ids with ``resolver`` within the block, instead of from the environment."""
    token = _RESOLVER.set(resolver)
    try:
        yield
    finally:
        _RESOLVER.reset(token)


def connection(conn_id: str) -> Connection:
    """Return the connection with this id, from the active resolver."""
    return _RESOLVER.get()(conn_id)
