"""Credentials for Google Cloud from an Airflow connection of type ``google_cloud_platform``. google-auth is imported on first use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.errors import InvalidError, StoreRefusedError

_SCOPES = ("https://www.googleapis.com/auth/pubsub", "https://www.googleapis.com/auth/monitoring.read")
_LONG = "extra__google_cloud_platform__"
_REFUSED = (
    "credential_config_file",
    "key_secret_name",
    "impersonation_chain",
    "idp_issuer_url",
    "client_id",
    "client_secret",
)
"""Properties of Airflow's connection that choose credentials in a way that this package does not support."""


def credentials_of(conn_id: str | None) -> Any:
    """Return credentials of google-auth. ``conn_id`` has the type ``google_cloud_platform``; ``None``: Application Default Credentials."""
    extra = {} if conn_id is None else _extra(conn_id)
    if refused := [name for name in _REFUSED if extra.get(name)]:
        raise InvalidError(
            "a google_cloud_platform connection names credentials in a way that is not supported; no message was received",
            conn_id=conn_id,
            property=refused,
            accepted=["key_path", "keyfile_dict", "is_anonymous", "Application Default Credentials"],
        )
    if str(extra.get("is_anonymous", "")).lower() == "true":
        from google.auth.credentials import AnonymousCredentials

        return AnonymousCredentials()
    key = _key(conn_id or "", extra)
    return _default() if key is None else _service_account(conn_id or "", key)


def _extra(conn_id: str) -> dict[str, Any]:
    conn = connection(conn_id)
    if conn.conn_type != "google_cloud_platform":
        raise InvalidError(
            "queue pubsub: conn_id must name a connection of type google_cloud_platform",
            conn_id=conn_id,
            given=conn.conn_type,
        )
    # Older versions of Airflow stored each property under a longer name.
    return {name.removeprefix(_LONG): value for name, value in conn.extra.items()}


def _key(conn_id: str, extra: Mapping[str, Any]) -> Any:
    if extra.get("keyfile_dict"):
        return extra["keyfile_dict"]
    if not extra.get("key_path"):
        return None
    try:
        return Path(str(extra["key_path"])).read_text()
    except (OSError, UnicodeDecodeError) as error:
        summary = "the key file that a google_cloud_platform connection names cannot be read; no message was received"
        raise InvalidError(summary, conn_id=conn_id, property="key_path") from error


def _service_account(conn_id: str, key: Any) -> Any:
    from google.oauth2 import service_account

    try:
        info = json.loads(key) if isinstance(key, str) else key
        return service_account.Credentials.from_service_account_info(info, scopes=_SCOPES)
    except Exception:
        # The cause is not chained, because its message may quote the key.
        raise InvalidError(
            "the key of a google_cloud_platform connection is not that of a service account; no message was received",
            conn_id=conn_id,
        ) from None


def _default() -> Any:
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        return google.auth.default(scopes=_SCOPES)[0]
    except DefaultCredentialsError as error:
        raise StoreRefusedError("the process lacks credentials for Google Cloud; no message was received").advising(
            "set `conn_id`, or give the process Application Default Credentials; then run again."
        ) from error
