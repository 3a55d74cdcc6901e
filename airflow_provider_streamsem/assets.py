"""
``streamsem://`` URIs of Airflow assets: a pipeline's data, named by its commit log.

``streamsem://s3/lake/_streamsem/orders`` is the log ``s3://lake/_streamsem/orders``, ``streamsem://file/data/log`` the log ``/data/log``. Airflow imports this
module wherever it meets an asset, so it imports nothing heavy, and Airflow itself only on use.
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
    The asset URI of a log.

    :param log: ``s3://bucket/prefix``, ``file:///path`` or an absolute path: as a :class:`Pipeline` has it
    :raises InvalidError: not a place
    """
    scheme, rest = split_url(log)
    return f"{SCHEME}://{scheme}/{quote(rest.strip('/'))}"


def log_of(uri: str) -> str:
    """
    The log of an asset URI.

    :raises InvalidError: not such a URI
    """
    parts = urlsplit(uri)
    if parts.scheme != SCHEME or not parts.path.strip("/") or parts.query or parts.fragment:
        accepted = f"{SCHEME}://s3/bucket/prefix"
        raise InvalidError("an asset's URI does not name a commit log", given=uri, accepted=accepted)
    rest = unquote(parts.path.strip("/"))
    log = f"/{rest}" if parts.netloc == "file" else f"{parts.netloc}://{rest}"
    split_url(log)
    return log


def create_asset(*, log: str, extra: dict[str, Any] | None = None) -> Asset:
    """The asset of a log, as hooks report it to Airflow's lineage."""
    from airflow.sdk import Asset

    return Asset(uri=log_uri(log), extra=extra)


def normalise(uri: SplitResult) -> SplitResult:
    """
    One spelling of a URI.

    :raises ValueError: it names no log; Airflow expects no other error here
    """
    try:
        return urlsplit(log_uri(log_of(uri.geturl())))
    except InvalidError as error:
        raise ValueError(str(error)) from error


def to_openlineage(asset: Asset, lineage_context: object) -> Any:
    """The log as an OpenLineage dataset, by its naming rules for S3 and local files; ``None`` where OpenLineage is not installed."""
    from airflow.providers.common.compat.openlineage.facet import Dataset

    scheme, rest = split_url(log_of(asset.uri))
    if scheme == "file":
        return Dataset(namespace="file", name=rest)
    place, _, name = rest.partition("/")
    return Dataset(namespace=f"{scheme}://{place}", name=name or "/")
