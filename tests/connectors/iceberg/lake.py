"""An Iceberg sink on local disk with a SQL catalog, batches for it without an engine, and a catalog that fails at a chosen step."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pyiceberg.catalog
from pyiceberg.catalog import Catalog, CatalogType
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from airflow_provider_streamsem.connectors.iceberg import catalog as iceberg_catalog
from airflow_provider_streamsem.connectors.iceberg.sink import IcebergSink
from airflow_provider_streamsem.connectors.sink import SinkCommit, SinkMarker
from airflow_provider_streamsem.protocol import keys
from airflow_provider_streamsem.protocol.entries import Committable, Receipt
from tests.connectors import batches

ID = [("id", "long")]
Hook = Callable[[str], None]


class Steps:
    """Calls a hook around each call that the sink makes to the catalog and to files. Without a hook it does nothing."""

    hook: Hook | None = None

    @classmethod
    def reached(cls, name: str) -> None:
        hook = cls.hook
        if hook is not None:
            hook(name)


def _stepped(name: str) -> Any:
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        self.properties["py-io-impl"] = f"{__name__}.SteppedIO"
        Steps.reached(f"before {name}")
        result = getattr(super(type(self), self), name)(*arguments, **named)
        Steps.reached(f"after {name}")
        return result

    return call


class SteppedCatalog(SqlCatalog):
    """A SQL catalog with a step before and after each request."""

    load_table = _stepped("load_table")
    create_table = _stepped("create_table")
    create_namespace_if_not_exists = _stepped("create_namespace_if_not_exists")
    commit_table = _stepped("commit_table")


class SteppedRestCatalog(RestCatalog):
    """A REST catalog with a step before and after each request."""

    load_table = _stepped("load_table")
    create_table = _stepped("create_table")
    create_namespace_if_not_exists = _stepped("create_namespace_if_not_exists")
    commit_table = _stepped("commit_table")


pyiceberg.catalog.AVAILABLE_CATALOGS[CatalogType.SQL] = lambda name, conf: SteppedCatalog(name, **conf)
pyiceberg.catalog.AVAILABLE_CATALOGS[CatalogType.REST] = lambda name, conf: SteppedRestCatalog(name, **conf)


class SteppedIO(PyArrowFileIO):
    """File I/O with a step before and after each write, and before each read or delete."""

    def new_input(self, location: str) -> Any:
        Steps.reached("before read")
        return super().new_input(location)

    def new_output(self, location: str) -> Any:
        file = super().new_output(location)
        create = file.create

        def step_by_step(overwrite: bool = False) -> Any:
            Steps.reached("before write")
            stream = create(overwrite)
            return _Stream(stream)

        file.create = step_by_step  # type: ignore[method-assign]
        return file

    def delete(self, location: Any) -> None:
        Steps.reached("before delete")
        super().delete(location)


class _Stream:
    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()

    def close(self) -> None:
        self._stream.close()
        Steps.reached("after write")


@dataclass
class Lake:
    """
    An Iceberg sink with its catalog and files.

    :param root: directory of the SQL catalog, and of the files unless ``location`` is set
    :param changes: arguments of the sink
    :param location: location of the files
    :param rest: URL of a REST catalog that is used instead of the SQL catalog
    :param name: name of the table. In a catalog that others share, it must be unique
    """

    root: Path
    changes: dict[str, Any] = field(default_factory=dict)
    location: str = ""
    rest: str = ""
    name: str = "lake.rows"

    @property
    def properties(self) -> dict[str, str]:
        if self.rest:
            return {"type": "rest", "uri": self.rest}
        return {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db"}

    @property
    def sink(self) -> IcebergSink:
        arguments: dict[str, Any] = {
            "path": self.location or str(self.root / "table"),
            "table": self.name,
            "properties": self.properties,
        }
        return IcebergSink(**{**arguments, **self.changes})

    def catalog(self) -> Catalog:
        s3_access = iceberg_catalog._s3_properties(self.sink.path)
        kind = RestCatalog if self.rest else SqlCatalog
        return kind("default", **{**self.properties, **s3_access})

    def table(self) -> Table:
        with self.catalog() as catalog:
            return catalog.load_table(self.name)

    def rows(self, column: str = "id") -> list[Any]:
        return sorted(self.table().scan().to_arrow()[column].to_pylist())

    def staged(self, name: str, rows: Sequence[Any], *, attempt: str = "a") -> Committable:
        """Stage a file with these ids, or with these pyarrow tables under their directories, as an engine does."""
        version = int(name) if name.isdecimal() else 0
        sink = self.sink
        are_tables = bool(rows) and isinstance(rows[0], tuple)
        tables = rows if are_tables else [("", pyarrow.table({"id": pyarrow.array(rows, pyarrow.int64())}))]
        for at, (directory, table) in enumerate(tables):
            if table.num_rows:
                written = io.BytesIO()
                pyarrow.parquet.write_table(table, written)
                key = "/".join(part for part in (directory, f"part-{at}.parquet") if part)
                sink.dataset().create(f"{keys.data_prefix(version, attempt)}{key}", written.getvalue())
        return self.sink.collect(version, attempt)

    def batch(
        self,
        version: int,
        rows: Sequence[Any],
        *,
        columns: Sequence[tuple[str, str]] = ID,
        reprocesses: SinkCommit | None = None,
    ) -> SinkCommit:
        return SinkCommit(
            pipeline_uuid="p",
            sink="t",
            version=version,
            outcome=batches.outcome_of(version),
            expected_marker=batches.before(version),
            committable=self.staged(str(version), rows),
            schema=spark_schema(columns),
            root=version if reprocesses is None else reprocesses.root,
            replaced={} if reprocesses is None else {reprocesses.root: reprocesses.committable},
        )

    def publish(self, batch: SinkCommit, *, sink: IcebergSink | None = None) -> Receipt | None:
        return (sink or self.sink).publish(batch)

    def skip(self, batch: SinkCommit) -> Receipt | None:
        return self.sink.skip(batch)

    def marker(self) -> SinkMarker | None:
        return self.sink.marker("p", "t")

    def marked(self) -> list[str]:
        """Return the version and state of the marker of each snapshot that has one, in order."""
        marks = [s.summary.additional_properties.get("streamsem.p.t") for s in self.table().snapshots() if s.summary]
        return [mark.rpartition(" ")[0] for mark in marks if mark is not None]

    def with_options(self, **changes: Any) -> Lake:
        return replace(self, changes={**self.changes, **changes})


def spark_schema(columns: Sequence[tuple[str, Any]]) -> str:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in columns]
    return json.dumps({"type": "struct", "fields": fields})
