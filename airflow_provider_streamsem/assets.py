"""
Handlers for ``streamsem://`` URIs of Airflow assets. Such a URI identifies the data of a pipeline by its commit log.

``streamsem://s3/lake/_streamsem/orders`` identifies the log ``s3://lake/_streamsem/orders``, and ``streamsem://file/data/log`` the log ``/data/log``.

Airflow imports this module in every process that handles an asset. So the module imports no large package at module level, and it imports Airflow only
inside functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.stores.contract import split_url

if TYPE_CHECKING:
    from airflow.sdk import Asset

SCHEME = "streamsem"


def log_uri(log: str) -> str:
    """
    Return the asset URI of a commit log.

    :param log: ``s3://bucket/prefix``, ``file:///path`` or an absolute path, as in :class:`Pipeline`
    :raises InvalidError: ``log`` is not a valid location
    """
    scheme, rest = split_url(log)
    return f"{SCHEME}://{scheme}/{quote(rest.strip('/'))}"


def log_of(uri: str) -> str:
    """Return the commit log location that an asset URI identifies."""
    parts = urlsplit(uri)
    if parts.scheme != SCHEME or not parts.path.strip("/") or parts.query or parts.fragment:
        accepted = f"{SCHEME}://s3/bucket/prefix"
        raise InvalidError("an asset's URI does not name a commit log", given=uri, accepted=accepted)
    rest = unquote(parts.path.strip("/"))
    log = f"/{rest}" if parts.netloc == "file" else f"{parts.netloc}://{rest}"
    split_url(log)
    return log


def create_asset(*, log: str, extra: dict[str, Any] | None = None) -> Asset:
    """Return the asset of a commit log. Airflow calls this when hooks report lineage."""
    from airflow.sdk import Asset

    return Asset(uri=log_uri(log), extra=extra)


def normalise(uri: SplitResult) -> SplitResult:
    """Normalize an asset URI, so that all spellings of one log location give the same URI. Raises ``ValueError``, the only error that Airflow expects here."""
    try:
        return urlsplit(log_uri(log_of(uri.geturl())))
    except InvalidError as error:
        raise ValueError(str(error)) from error


def to_openlineage(asset: Asset, lineage_context: object) -> Any:
    """Return the log as an OpenLineage dataset; ``None`` without OpenLineage, whose classes Airflow's compatibility module then replaces with no-ops."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    scheme, rest = split_url(log_of(asset.uri))
    if scheme == "file":
        return Dataset(namespace="file", name=rest)
    location, _, name = rest.partition("/")
    return Dataset(namespace=f"{scheme}://{location}", name=name or "/")
