"""How a client reaches Pulsar: the URLs of the brokers and of the admin API, and the credentials. They come from an Airflow connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.connections import clear_text_warning, connection, refuse_other_properties
from airflow_provider_streamsem.errors import InvalidError

SERVICE_URL = r"pulsar(\+ssl)?://[^@/\s]+"
ADMIN_URL = r"https?://[^@/\s]+"
_ACCEPTED = ("admin_url", "tls", "tls_ca_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """
    One Pulsar cluster and the credentials for it. Spark sends it to the executors, so it contains the text of the file with certificates, not its path.

    :param service_url: ``pulsar://host:port`` or ``pulsar+ssl://host:port`` of the brokers or a proxy
    :param token: a JSON web token; ``""``: no authentication
    :param ca: certificates of authorities in PEM; ``""``: those of the package certifi
    """

    service_url: str
    admin_url: str
    token: str = field(default="", repr=False)
    ca: str = field(default="", repr=False)

    def for_executors(self) -> dict[str, Any]:
        """Arguments of :func:`airflow_provider_streamsem.connectors.pulsar.reading.client`. They may contain secrets."""
        return {"service_url": self.service_url, "token": self.token, "ca": self.ca}


def access_of(conn_id: str | None, service_url: str | None, admin_url: str | None) -> Access:
    """Return the access that an Airflow connection of type ``pulsar`` describes; without it, that to the URLs."""
    if conn_id is None:
        return Access(service_url=service_url or "", admin_url=admin_url or "")
    found = connection(conn_id)
    if found.conn_type != "pulsar":
        raise InvalidError(
            "source pulsar: conn_id must name a connection of type pulsar", conn_id=conn_id, given=found.conn_type
        )
    refuse_other_properties(found, _ACCEPTED)
    if not found.host:
        raise InvalidError("a pulsar connection must have a host", conn_id=conn_id)
    ca = _text_of(conn_id, found.extra.get("tls_ca_file"))
    tls = (
        bool(ca)
        or arguments.choice("tls of a pulsar connection", str(found.extra.get("tls", False)).lower(), ("true", "false"))
        == "true"
    )
    default = f"https://{found.host}:8443" if tls else f"http://{found.host}:8080"
    admin = arguments.text(
        "admin_url of a pulsar connection", found.extra.get("admin_url", default), pattern=ADMIN_URL,
        accepted="http://host:port or https://host:port, without credentials",
    )  # fmt: skip
    port = found.port or (6651 if tls else 6650)
    return Access(
        service_url=f"pulsar{'+ssl' if tls else ''}://{found.host}:{port}",
        admin_url=admin,
        token=found.password or "",
        ca=ca,
    )


def warnings(access: Access, conn_id: str | None) -> list[str]:
    """Return a warning if the token is sent to a broker or to the admin API without encryption."""
    if not access.token:
        return []
    remedy = 'set "tls": true and an https:// admin_url in the extra of the connection'
    clear = [url for url in (access.service_url, access.admin_url) if url.startswith(("pulsar://", "http://"))]
    hosts = (urlsplit(url).hostname or "" for url in clear)
    return next(filter(None, (clear_text_warning("source pulsar", conn_id or "", host, remedy) for host in hosts)), [])


def _text_of(conn_id: str, path: object) -> str:
    if not path:
        return ""
    try:
        return Path(str(path)).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidError(
            "a file that a pulsar connection names cannot be read", conn_id=conn_id, file=str(path)
        ) from error
