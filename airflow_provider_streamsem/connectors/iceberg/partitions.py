"""The partition fields of an Iceberg table, as ``partition_by`` of the sink names them: a column, ``day(at)``, ``bucket(16, id)``. Also ``days(at)``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_streamsem.errors import DataError, InvalidError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

_CALL = re.compile(r"(\w+)\(\s*(?:(\d+)\s*,\s*)?([^\s()][^()]*?)\s*\)")
_OF_TIME = {"year": "year", "month": "month", "day": "day", "hour": "hour"} | {
    "years": "year", "months": "month", "days": "day", "hours": "hour"
}  # fmt: skip
_WITH_NUMBER = ("bucket", "truncate")


@dataclass(frozen=True, slots=True)
class Partition:
    """
    One partition field.

    :param column: the column of the table
    :param transform: as pyiceberg writes it: ``identity``, ``day``, ``bucket[16]``
    """

    column: str
    transform: str = "identity"

    @classmethod
    def parse(cls, where: str, text: str) -> Partition:
        """Return the partition field that an argument names: a column, or a transform of a column as in Spark SQL."""
        call = _CALL.fullmatch(text)
        if call is None:
            return cls(text)
        name, number, column = call.groups()
        if name in _OF_TIME and number is None:
            return cls(column, _OF_TIME[name])
        if name in _WITH_NUMBER and number is not None and int(number) > 0:
            return cls(column, f"{name}[{int(number)}]")
        raise InvalidError(f"{where} partition_by names a transform that does not exist", given=text).advising(
            "use a column, year(c), month(c), day(c), hour(c), bucket(n, c) or truncate(n, c)."
        )

    @property
    def text(self) -> str:
        """The field as an argument, in one spelling."""
        if self.transform == "identity":
            return self.column
        name, _, number = self.transform.rstrip("]").partition("[")
        return f"{name}({number}, {self.column})" if number else f"{name}({self.column})"

    @property
    def is_identity(self) -> bool:
        return self.transform == "identity"

    @property
    def name(self) -> str:
        """The name of the field, as Spark gives it."""
        kind = self.transform.partition("[")[0]
        return self.column if self.is_identity else f"{self.column}_{'trunc' if kind == 'truncate' else kind}"


def of_table(table: Table) -> list[Partition]:
    """Return the partition fields of the newest partition spec of a table."""
    schema = table.schema()
    fields = table.spec().fields
    return [Partition(str(schema.find_column_name(field.source_id)), str(field.transform)) for field in fields]


def check(partitions: list[Partition], columns: Schema) -> None:
    """Refuse transforms of columns whose type they do not accept, and fields with a name that is in use."""
    from pyiceberg.transforms import parse_transform

    kinds = {field.name: field.field_type for field in columns.fields}
    wrong = [
        part.text
        for part in partitions
        if part.column in kinds and not parse_transform(part.transform).can_transform(kinds[part.column])
    ]
    if wrong:
        raise DataError(
            "the types of columns do not accept the transforms of partition_by", partition_by=wrong
        ).advising("use another transform, or cast the columns in the transform of the pipeline. Then run again.")
    names = [part.name for part in partitions]
    taken = [
        part.text for part in partitions if names.count(part.name) > 1 or (not part.is_identity and part.name in kinds)
    ]
    if taken:
        raise DataError("partition fields have the name of a column or of another field", partition_by=taken).advising(
            "rename the column in the transform of the pipeline, or use another partition field. Then run again."
        )


def spec_of(partitions: list[Partition], columns: Schema) -> Any:
    """Return the partition spec of a new table."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import parse_transform

    fields = [
        PartitionField(
            columns.find_field(part.column).field_id,
            1000 + at,
            parse_transform(part.transform),
            part.name,
        )
        for at, part in enumerate(partitions)
    ]
    return PartitionSpec(*fields)
