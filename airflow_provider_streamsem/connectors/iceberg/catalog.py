"""
Opens a pyiceberg catalog by its name, properties and connection. Property values never appear in errors, logs or specs.

Some properties name code that pyiceberg imports and calls, even if a catalog server or a table has set the property. So this module checks the user's
properties against an allow-list. It refuses properties of servers and tables that name code.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

from airflow_provider_streamsem import secret_names
from airflow_provider_streamsem.connections import connection
from airflow_provider_streamsem.errors import InvalidError, StreamsemError, UnavailableError
from airflow_provider_streamsem.stores import s3
from airflow_provider_streamsem.stores.contract import split_url

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

_NAMES = (
    "audience", "credential", "downcast-ns-timestamp-to-us-on-write", "echo", "init_catalog_tables", "location", "namespace-separator",
    "oauth2-server-uri", "pool_pre_ping", "prefix", "resource", "rest-page-size", "scan-planning-mode", "scope", "snapshot-loading-mode", "table-name",
    "token", "type", "ugi", "uri", "view-endpoints-supported", "warehouse",
)  # fmt: skip
_FAMILIES = (
    r"(adls|client|dynamodb|gcp\.bigquery|gcs|glue|hdfs|header|hf|hive|lock-check|rest|s3|s3tables)[.-][A-Za-z0-9._-]+"
)
_TRANSIENT_BASES = {
    "sqlalchemy.OperationalError",
    "sqlalchemy.InterfaceError",
    "sqlalchemy.IntegrityError",
    "sqlalchemy.TimeoutError",
    "botocore.BotoCoreError",
    "thrift.TTransportException",
    "google.ServerError",
    "google.RetryError",
    "google.TooManyRequests",
    "pyiceberg.TooManyRequestsError",
}
"""Base classes of transient errors by name, because the catalogs' client libraries may not be installed, and pyiceberg 0.10 and 0.11 lack the last one."""
_ACCEPTED = re.compile(rf"{'|'.join(map(re.escape, _NAMES))}|{_FAMILIES}")
_CODE = re.compile(r"impl$|^auth($|\.)|^gcs\.session-kwargs$", re.IGNORECASE)
_SERVER_CODE = re.compile(r"(^|\.)py-[a-z.-]*impl$|^s3\.retry-strategy-impl$", re.IGNORECASE)
_PLAIN_HEADERS = ("header.x-iceberg-access-delegation",)
_PLAIN_SCHEMES = ("http", "https", "thrift")
_URI_QUERY = ("application_name", "charset", "connect_timeout", "sslcert", "sslkey", "sslmode", "sslrootcert")


def check_properties(where: str, properties: Mapping[str, str], *, accepts_secrets: bool = False) -> None:
    """Refuse properties that name code or are not in the allow-list. The log stores the spec, so only a connection may have secrets."""
    refused = sorted(name for name in properties if _CODE.search(name) or not _ACCEPTED.fullmatch(name))
    if refused:
        raise InvalidError(
            f"{where} properties contain names that are not accepted: pyiceberg may load code that they name",
            given=refused,
            accepted=[*_NAMES, "adls.*", "client.*", "gcs.*", "glue.*", "header.*", "hive.*", "rest.*", "s3.*", "…"],
        )
    query = set(parse_qs(_query(properties.get("uri", "")), keep_blank_values=True)) - {*_URI_QUERY}
    if query:
        summary = f"{where} uri contains settings of a database driver that are not accepted: drivers may load code that they name"
        raise InvalidError(summary, given=sorted(query), accepted=list(_URI_QUERY))
    headers = [name for name in properties if name.startswith("header.") and name.lower() not in _PLAIN_HEADERS]
    if headers and not accepts_secrets:
        summary = f"{where} properties that may hold a secret must come from a connection"
        raise InvalidError(summary, given=sorted(headers), accepted="conn_id=")
    if not accepts_secrets:
        secret_names.without_secrets(f"{where} properties", properties)


def _query(uri: str) -> str:
    """``""`` for the URL of a catalog server, whose query is not checked."""
    parts = urlsplit(uri)
    return "" if parts.scheme in _PLAIN_SCHEMES else parts.query


def _refuse_code(origin: str, properties: Mapping[str, Any]) -> None:
    code = sorted(name for name in properties if _SERVER_CODE.search(name))
    if code:
        raise InvalidError(
            f"{origin} names code for pyiceberg to load; the code was not loaded, and nothing was read or published",
            given=code,
        ).advising("remove the property there.")


@contextmanager
def opened(name: str, properties: Mapping[str, str], conn_id: str | None, location: str) -> Iterator[Catalog]:
    """
    Open the catalog for the block.

    Properties of the connection override those of the spec, and both override this process's S3 access. pyiceberg adds the properties that its configuration
    file and ``PYICEBERG_CATALOG__<NAME>__*`` set for this catalog name.

    :param location: location of the staged files. On S3, the table's files are accessed with this process's S3 access
    """
    try:
        from pyiceberg.catalog import load_catalog
        from pyiceberg.exceptions import NoSuchPropertyException, NotInstalledError
        from pyiceberg.utils.config import Config
    except ImportError as error:
        raise InvalidError("the pyiceberg library is not installed").advising(
            "run `pip install 'airflow-provider-streamsem[iceberg]'`."
        ) from error
    from airflow_provider_streamsem.connectors.iceberg.internals import check_file_io

    merged = {**_s3_properties(location), **properties, **_connection_properties(conn_id)}
    configured = Config().get_catalog_config(name) or {}  # may name code, because it is set on this machine
    try:
        catalog = load_catalog(name, **merged)
        of_server = {name: value for name, value in catalog.properties.items() if configured.get(name) != value}
        _refuse_code("the Iceberg catalog's server", of_server)
        check_file_io(catalog, partial(_refuse_code, "the Iceberg table"))
    except InvalidError:
        raise
    except (ImportError, NotInstalledError) as error:
        raise InvalidError(
            "this kind of catalog needs a library that is not installed",
            catalog=name,
            library=getattr(error, "name", None) or "",
        ).advising(
            "install the library that pyiceberg names in the cause above, for example `pip install 'pyiceberg[glue]'`."
        ) from error
    except (ValueError, NoSuchPropertyException) as error:
        # The cause is not chained, because pyiceberg's message contains all properties.
        raise InvalidError(
            "pyiceberg cannot open a catalog with these properties",
            catalog=name,
            given=sorted({**properties, **_connection_properties(conn_id)}),
            problem=type(error).__name__,
        ) from None
    except Exception as error:
        # The cause is not chained here either, because it may contain properties.
        problem = type(error).__name__
        raise UnavailableError("the Iceberg catalog cannot be opened", catalog=name, problem=problem) from None
    with catalog:
        yield catalog


_UNKNOWN_TYPE = re.compile(r"Unsupported field type: '(\w+)'")


def table(catalog: Catalog, name: str, *, refusal: type[StreamsemError]) -> Table | None:
    """Load ``namespace.table``; ``None`` if there is none. ``refusal`` is raised if pyiceberg can never read the table."""
    from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

    try:
        return catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except InvalidError:
        raise
    except Exception as error:
        unknown = sorted({*_UNKNOWN_TYPE.findall(str(error))})
        if unknown:
            summary = "the Iceberg table has columns of types that pyiceberg cannot read"
            raise refusal(summary, table=name, types=unknown).advising(
                "use a table without these types: copy the rows with Spark, or drop the columns. Then run again."
            ) from None
        summary = "the Iceberg table cannot be loaded"
        raise error_class(error, refusal)(summary, table=name, problem=type(error).__name__) from error


def error_class(error: BaseException, refusal: type[StreamsemError]) -> type[StreamsemError]:
    """Return ``UnavailableError`` if the same request may succeed later, else ``refusal``."""
    return UnavailableError if is_transient(error) else refusal


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed later: I/O errors, timeouts, throttling, refused commits, and concurrently created or dropped tables."""
    from pyiceberg import exceptions as errors

    from airflow_provider_streamsem.connectors.iceberg.commit import RefusedError

    if isinstance(error, PermissionError):
        return False
    transient = (
        errors.CommitFailedException, errors.CommitStateUnknownException, errors.ServiceUnavailableError, errors.ServerError,
        errors.AuthorizationExpiredError, errors.WaitingForLockException, errors.TableAlreadyExistsError, errors.NamespaceAlreadyExistsError,
        errors.NoSuchTableError, errors.GenericDynamoDbError, errors.ConditionalCheckFailedException,
    )  # fmt: skip
    if isinstance(error, (OSError, MemoryError, UnavailableError, RefusedError, *transient)):
        return True
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(error).__mro__}
    if "botocore.ClientError" in kinds:
        response: Any = getattr(error, "response", {})
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
        code = str(response.get("Error", {}).get("Code", ""))
        return status >= 500 or status in (408, 409, 429) or "Throttl" in code or "Concurrent" in code
    return bool(kinds & _TRANSIENT_BASES)


def _s3_properties(location: str) -> dict[str, str]:
    if split_url(location)[0] != "s3":
        return {}
    access = s3.resolved()
    properties = {
        "s3.endpoint": access.endpoint_url,
        "s3.region": access.region_name,
        "s3.access-key-id": access.access_key_id,
        "s3.secret-access-key": access.secret_access_key,
        "s3.session-token": access.session_token,
    }
    return {name: value for name, value in properties.items() if value is not None}


def _connection_properties(conn_id: str | None) -> dict[str, str]:
    """The extra holds properties, the host is the ``uri``, and login and password are the ``credential`` of a REST catalog."""
    if conn_id is None:
        return {}
    airflow_connection = connection(conn_id)
    properties: dict[str, str] = {}
    if airflow_connection.host:
        properties["uri"] = airflow_connection.host
    if airflow_connection.login and airflow_connection.password:
        properties["credential"] = f"{airflow_connection.login}:{airflow_connection.password}"
    properties |= {name: _text(value) for name, value in airflow_connection.extra.items()}
    check_properties(f"the iceberg connection {conn_id}:", properties, accepts_secrets=True)
    return properties


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
