"""An alter: changes the immutable fields of the pipeline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from airflow_provider_streamsem.protocol.entries import Hidden, Json, Kind, Marker, Outcome, Plan
from airflow_provider_streamsem.protocol.offsets import Offsets


@dataclass(frozen=True, slots=True, kw_only=True)
class Alter(Kind):
    """
    The payload of an alter: what it changes besides the spec.

    :param offsets: the offsets at which partitions start that the log does not have yet
    :param state: the fields of the state that the next version starts without
    :param removed: the sinks that the pipeline no longer has, and those whose dataset or table was replaced by another one. Their rows of all versions up to
        the alter are no longer visible through the log
    """

    kind = "alter"
    name = "alter"
    label = "alter"
    color = "cyan.solid"
    invariant = "I22"
    uses_spec = True
    chains = ("alter",)
    changes_fields = True
    offsets: Offsets = field(default_factory=dict)
    state: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def hidden(self) -> Hidden:
        return Hidden(sinks=self.removed)

    @property
    def new_partitions(self) -> Offsets:
        return self.offsets

    def next_offsets(self, plan: Plan, *, committed: bool) -> Offsets:
        return self.offsets if committed else {}

    def state_after(self, state: Json) -> Json:
        """Return the state without the dropped fields; ``None`` if no field is left."""
        fields = state if isinstance(state, Mapping) else {}  # the state of a forged outcome may be any JSON
        return {name: part for name, part in fields.items() if name not in self.state} or None

    def schemas_after(self, schemas: Mapping[str, str]) -> Mapping[str, str]:
        return {name: schema for name, schema in schemas.items() if name not in self.removed}

    def markers_after(self, markers: Mapping[str, Marker]) -> Mapping[str, Marker]:
        return {name: marker for name, marker in markers.items() if name not in self.removed}

    def check_plan(self, plan: Plan, *, before: Outcome | None, next: Offsets) -> None:
        """Check that the alter is not the first version, and that its offsets are those of new partitions (I22)."""
        Kind.check_plan(self, plan, before=before, next=next)
        if plan.version == 0 or self.offsets.keys() & next.keys():
            summary = "an alter is the first version, or moves the offset of a partition that the log has"
            raise self.damaged(summary, plan.version)
