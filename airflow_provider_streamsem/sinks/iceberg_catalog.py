"""Opening a pyiceberg catalog by its name, properties and connection; none of their values gets into an error, a log or a spec."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.errors import InvalidError, UnavailableError
from airflow_provider_streamsem.stores import s3
from airflow_provider_streamsem.stores.contract import split_url

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_SECRET = re.compile(
    r"(^auth($|\.))|authorization|((password|secret|token|credential|access-key|account-key|connection-string)$)",
    re.IGNORECASE,
)
_OF_SERVICES = {
    "sqlalchemy.OperationalError",
    "sqlalchemy.InterfaceError",
    "sqlalchemy.IntegrityError",
    "sqlalchemy.TimeoutError",
    "botocore.BotoCoreError",
    "thrift.TTransportException",
    "google.ServerError",
    "google.RetryError",
    "google.TooManyRequests",
}
"""base classes of errors of the catalogs' own clients, which may not be installed"""
_CODE = ("py-catalog-impl", "py-io-impl", "py-location-provider-impl")


def without_secrets(where: str, properties: Mapping[str, str]) -> None:
    """
    Refuse properties that hold a secret, as far as that can be told: they would be stored in the log with the spec.

    :raises InvalidError: names them, without their values
    """
    secret = sorted(name for name, value in properties.items() if _SECRET.search(name) or _has_password(value))
    if secret:
        raise InvalidError(
            f"{where} properties that hold a secret must come from a connection", given=secret, accepted="conn_id="
        )


def _has_password(value: str) -> bool:
    try:
        return "://" in value and urlsplit(value).password is not None
    except ValueError:
        return False


@contextmanager
def opened(name: str, properties: Mapping[str, str], conn_id: str | None, place: str) -> Iterator[Catalog]:
    """
    The catalog while the block runs.

    What the sink's properties say goes before how this process reaches S3, and the connection before both. pyiceberg adds what its own configuration file
    and ``PYICEBERG_CATALOG__<NAME>__*`` have under the catalog's name.

    :param place: where files are staged: on S3, this process's access to it is that of the table's files
    :raises InvalidError: pyiceberg, or a part of it, is not installed; the properties are no catalog's
    :raises UnavailableError: the catalog does not answer
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchPropertyException, NotInstalledError
    except ImportError as error:
        raise InvalidError(
            "the pyiceberg library is not installed", accepted="pip install 'airflow-provider-streamsem[iceberg]'"
        ) from error
    given = {**_s3_properties(place), **properties, **_of_connection(conn_id)}
    try:
        catalog = load_catalog(name, **given)
    except (ImportError, NotInstalledError) as error:
        raise InvalidError("this kind of catalog needs a library that is not installed", catalog=name) from error
    except (ValueError, NoSuchPropertyException) as error:
        # The cause is not chained: pyiceberg quotes all properties.
        raise InvalidError(
            "the properties are not those of a catalog",
            catalog=name,
            given=sorted({**properties, **_of_connection(conn_id)}),
            problem=type(error).__name__,
        ) from None
    except Exception as error:
        raise UnavailableError("the Iceberg catalog cannot be opened", catalog=name) from error
    with catalog:
        yield catalog


def is_transient(error: BaseException) -> bool:
    """
    Whether an error comes from the catalog's service, the store or another writer, so that the same request may succeed later.

    These are I/O, timeouts, throttling, refused commits, and tables that other writers created or dropped at the same time. Everything else, no permission
    among it, is answered in the same way again.
    """
    from pyiceberg import exceptions as told

    from airflow_provider_streamsem.sinks.iceberg_commit import RefusedError

    if isinstance(error, PermissionError):
        return False
    named = (
        told.CommitFailedException, told.CommitStateUnknownException, told.ServiceUnavailableError, told.ServerError, told.TooManyRequestsError,
        told.AuthorizationExpiredError, told.WaitingForLockException, told.TableAlreadyExistsError, told.NamespaceAlreadyExistsError,
        told.NoSuchTableError, told.GenericDynamoDbError, told.ConditionalCheckFailedException,
    )  # fmt: skip
    if isinstance(error, (OSError, MemoryError, UnavailableError, RefusedError, *named)):
        return True
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    if "botocore.ClientError" in kinds:
        answer: Any = getattr(error, "response", {})
        status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
        code = str(answer.get("Error", {}).get("Code", ""))
        return status >= 500 or status in (408, 409, 429) or "Throttl" in code or "Concurrent" in code
    return bool(kinds & _OF_SERVICES)


def _s3_properties(place: str) -> dict[str, str]:
    if split_url(place)[0] != "s3":
        return {}
    access = s3.resolved()
    found = {
        "s3.endpoint": access.endpoint_url,
        "s3.region": access.region_name,
        "s3.access-key-id": access.access_key_id,
        "s3.secret-access-key": access.secret_access_key,
        "s3.session-token": access.session_token,
    }
    return {name: value for name, value in found.items() if value is not None}


def _of_connection(conn_id: str | None) -> dict[str, str]:
    """A connection's extra holds properties of the catalog; its host is the ``uri``, its login and password are the ``credential`` of a REST catalog."""
    if conn_id is None:
        return {}
    found = connection(conn_id)
    code = sorted(name for name in found.extra if name in _CODE)
    if code:
        raise InvalidError("a connection must not name code to run", conn_id=conn_id, given=code)
    properties: dict[str, str] = {}
    if found.host:
        properties["uri"] = found.host
    if found.login and found.password:
        properties["credential"] = f"{found.login}:{found.password}"
    return properties | {name: _text(value) for name, value in found.extra.items()}


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
