"""How a client reaches NATS: the servers, the credentials and the TLS settings. They come from an Airflow connection."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_streamsem.connections import clear_text_warning, connection, refuse_other_properties
from airflow_provider_streamsem.errors import InvalidError

_PORT = 4222
_FILES = {"creds_file": "creds", "tls_ca_file": "ca", "tls_cert_file": "certificate", "tls_key_file": "key"}
"""Property of a connection that names a file → field of :class:`Access` that holds the text of the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """
    The servers of one NATS system and the credentials for them. Spark sends it to the executors, so it contains the text of files, not their paths.

    :param servers: ``host:port`` of each server, at least one
    :param tls: whether the client refuses servers without TLS. If false, the server decides
    :param creds: text of a credentials file (a JWT and an nkey seed)
    :param ca: certificates in PEM; ``""``: those of the machine. ``certificate`` and ``key`` are those of the client
    """

    servers: tuple[str, ...]
    tls: bool = False
    login: str = field(default="", repr=False)
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    creds: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)
    certificate: str = field(default="", repr=False)
    key: str = field(default="", repr=False)

    @property
    def has_credentials(self) -> bool:
        """Whether the client authenticates by a password, a token or a credentials file."""
        return bool(self.login or self.token or self.creds)

    def context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.ca or None)
        if self.certificate:
            # The ssl module reads a private key only from a file.
            with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                file.write(f"{self.certificate}\n{self.key}\n")
                file.flush()
                context.load_cert_chain(file.name)
        return context


def access_of(conn_id: str | None, servers: str | None) -> Access:
    """Return the access that a connection of type ``nats`` describes; without it, that to ``servers`` (``host:port,…``), which have no security."""
    if conn_id is None:
        return Access(servers=_addresses(servers or "", None))
    airflow_connection = connection(conn_id)
    if airflow_connection.conn_type != "nats":
        raise InvalidError(
            "source nats: conn_id must name a connection of type nats",
            conn_id=conn_id,
            given=airflow_connection.conn_type,
        )
    refuse_other_properties(airflow_connection, (*_FILES, "tls"))
    if not airflow_connection.host:
        raise InvalidError("a nats connection must have a host", conn_id=conn_id)
    texts = {name: _file_text(conn_id, key, airflow_connection.extra) for key, name in _FILES.items()}
    if bool(texts["certificate"]) != bool(texts["key"]):
        raise InvalidError(
            "a nats connection must have both tls_cert_file and tls_key_file, or neither", conn_id=conn_id
        )
    # Airflow's form has one field for secrets, so a password without a login is a token.
    login, password = airflow_connection.login, airflow_connection.password
    secret = {"login": login, "password": password} if login else {"token": password}
    has_tls = str(airflow_connection.extra.get("tls", "")).lower() in ("true", "1") or bool(
        texts["ca"] or texts["certificate"]
    )
    return Access(servers=_addresses(airflow_connection.host, airflow_connection.port), tls=has_tls, **secret, **texts)


def warnings(access: Access, conn_id: str | None) -> list[str]:
    """Return a warning if the client may send credentials without encryption."""
    if access.tls or not access.has_credentials:
        return []
    hosts = (server.rpartition(":")[0].strip("[]") for server in access.servers)
    remedy = 'set "tls": true in the extra of the connection'
    return next(filter(None, (clear_text_warning("source nats", conn_id or "", host, remedy) for host in hosts)), [])


def _addresses(hosts: str, port: int | None) -> tuple[str, ...]:
    names = [part.strip() for part in hosts.split(",") if part.strip()]
    return tuple(name if _has_port(name) else f"{name}:{port or _PORT}" for name in names)


def _has_port(name: str) -> bool:
    return name.rpartition("]")[2].rpartition(":")[2].isdecimal() and ":" in name.rpartition("]")[2]


def _file_text(conn_id: str, name: str, extra: Mapping[str, Any]) -> str:
    path = extra.get(name)
    if not path:
        return ""
    try:
        return Path(str(path)).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(
            "a file that a nats connection names cannot be read; no client was started", conn_id=conn_id, property=name
        ) from error
