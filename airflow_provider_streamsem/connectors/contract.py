"""The schema contract of a sink: which changes of its columns a batch may make (argument ``contract``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_streamsem import arguments
from airflow_provider_streamsem.errors import InvalidError

EVOLVE, FREEZE, DISCARD_ROW, DISCARD_VALUE = "evolve", "freeze", "discard_row", "discard_value"
_MODES = (EVOLVE, FREEZE, DISCARD_ROW, DISCARD_VALUE)


@dataclass(frozen=True, kw_only=True)
class Contract:
    """
    Says what happens if the rows of a batch do not fit the columns that the sink has. The names of the arguments and of the modes are those of dlt.

    ``evolve``: the sink changes, if its format can. ``freeze``: the batch fails before its commit. ``discard_row``: a row with a value that does not fit is
    discarded. ``discard_value``: such a value is discarded, and the row is kept.

    The columns of a sink are those that the log has recorded, and those of its Delta or Iceberg table. A sink without columns gets those of the first batch.

    :param tables: whether the sink may create its table: ``evolve`` or ``freeze``
    :param columns: for columns that the sink does not have. ``discard_row`` discards a row with a value in such a column. Both modes that discard leave the
        columns out
    :param data_type: for columns of a type whose values the sink's type does not hold exactly. ``evolve`` widens the type of the sink where its format can, and
        refuses other types. ``discard_value`` writes null for a value that the type of the sink does not hold exactly. Nested columns cannot be discarded
    :raises InvalidError: an argument is not valid
    """

    tables: str = EVOLVE
    columns: str = EVOLVE
    data_type: str = EVOLVE

    def __post_init__(self) -> None:
        arguments.choice("contract.tables", self.tables, (EVOLVE, FREEZE))
        arguments.choice("contract.columns", self.columns, _MODES)
        arguments.choice("contract.data_type", self.data_type, _MODES)

    @classmethod
    def of(cls, where: str, value: object) -> Contract:
        """Return the argument ``contract`` of a sink: one mode for columns and types, or a table of modes in TOML."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            mode = arguments.choice(f"{where} contract", value, _MODES)
            return cls(columns=mode, data_type=mode)
        if not isinstance(value, Mapping):
            raise InvalidError(f"{where} contract must be a mode or Contract(...)", given=type(value).__name__)
        arguments.known_keys(f"{where} contract", value, [field.name for field in dataclasses.fields(cls)])
        return cls(**value)
