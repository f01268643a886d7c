"""The program of a shuffle, as an artifact says it: what planner and engine follow.

It is the compiler's L2: the descriptor lists to plan, and the steps over them, ordered by tokens.
How many points and slots a call has, its arguments say (``engine/sizes.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

from fuscoc_runtime.manifest.declared import FieldSpec, PlacementSpec
from fuscoc_runtime.padding import check_padding


@dataclass(frozen=True)
class RunDim:
    """An outer run dimension: strides in cells (source, or a column's name) and elements (row)."""

    count: int
    src_stride: int | str
    dst_stride: int


@dataclass(frozen=True)
class FieldRuns:
    """How one field of a segment is copied."""

    name: str
    dtype: str
    run_elems: int
    run_dims: tuple[RunDim, ...]
    seg_elems: int
    cell_elems: int
    unit_bytes: int
    copy_dtype: str


@dataclass(frozen=True)
class RelationSpec:
    """The kernels of the relation: ``kernel`` evaluates it, ``block`` points of the domain a
    program; ``extents_kernel`` has the sizes of every outer index of a ragged domain.

    ``outputs``: columns of a point; of these, ``addresses`` say where its source segment is. With
    ``apart`` no two segments that move may begin with the same source cell.
    """

    kernel: str
    extents_kernel: str | None
    block: int
    outputs: tuple[str, ...]
    addresses: tuple[str, ...]
    apart: bool


@dataclass(frozen=True)
class PackedSlots:
    """How a packed target numbers its slots: see ``PackedTarget``."""

    kind: Literal["packed"]
    num_keys: int
    group: int
    align: int
    padding: str
    most_padding: int
    capacity: int | None
    compact: bool
    distinct: bool
    placement: PlacementSpec

    def __post_init__(self) -> None:
        check_padding(self)

    @property
    def is_placed_by_table(self) -> bool:
        """Whether an input says where keys live, which may change from call to call."""
        return self.placement.kind == "table"


@dataclass(frozen=True)
class DenseSlots:
    """The relation numbers the slots itself."""

    kind: Literal["dense"]
    is_placed_by_table: ClassVar[bool] = False


@dataclass(frozen=True)
class ListSpec:
    """A descriptor list of ``builder``; ``per`` says what an entry of a dispatch's is a copy for.

    ``terms`` are the columns that entries of a reduction point into.
    """

    name: str
    builder: Literal["source", "carrier", "forwarder", "target"]
    per: Literal["point", "rank", "node"] | None
    columns: tuple[str, ...]
    terms: tuple[str, ...]


@dataclass(frozen=True)
class LaunchStep:
    """Run a kernel over a descriptor list, which takes rows from ``src`` to ``dst``.

    ``bind``: kernel argument -> field of a buffer. ``after``: numbers of the steps before it.
    """

    op: Literal["launch"]
    after: tuple[int, ...]
    kernel: str
    list: str
    src: str
    dst: str
    bind: Mapping[str, str]
    signal: int | None
    wait: tuple[int, ...]


@dataclass(frozen=True)
class Rules:
    """How the rows of the network hop travel: see ``ExchangeStep``."""

    forwarder: str
    schedule: str
    slice_bytes: int

    @property
    def balances_senders(self) -> bool:
        """Whether a rank may send rows of another rank of its node."""
        return self.forwarder in ("rebalance", "auto")


@dataclass(frozen=True)
class ExchangeStep:
    """The network hop. Forth: the rule that picks forwarders, that which orders nodes, and the most
    that a rank moves at a time; back, nothing has to be chosen."""

    op: Literal["exchange"]
    after: tuple[int, ...]
    forwarder: str | None
    schedule: str | None
    slice_bytes: int | None


@dataclass(frozen=True)
class PathSpec:
    """Dispatch or combine: the lists to plan, and the steps over them."""

    lists: tuple[ListSpec, ...]
    steps: tuple[LaunchStep | ExchangeStep, ...]

    @cached_property
    def launches(self) -> tuple[LaunchStep, ...]:
        """The steps that launch kernels."""
        return tuple(step for step in self.steps if isinstance(step, LaunchStep))

    @cached_property
    def exchange(self) -> ExchangeStep:
        """The network hop."""
        (found,) = (step for step in self.steps if isinstance(step, ExchangeStep))
        return found

    @cached_property
    def before(self) -> tuple[LaunchStep, ...]:
        """The steps that the network hop comes after, in order."""
        first, found = set[int](), [*self.exchange.after]
        while found:
            if (number := found.pop()) not in first:
                first.add(number)
                found += self.steps[number].after
        return self._launches(first)

    @cached_property
    def behind(self) -> tuple[LaunchStep, ...]:
        """The steps that come after the network hop, in order."""
        later = {self.steps.index(self.exchange)}
        for number, step in enumerate(self.steps):
            if later.intersection(step.after):
                later.add(number)
        return self._launches(later)

    @cached_property
    def beside(self) -> tuple[LaunchStep, ...]:
        """The steps that have nothing to do with the network hop, in order."""
        others = (*self.before, *self.behind)
        return tuple(step for step in self.launches if step not in others)

    def _launches(self, numbers: set[int]) -> tuple[LaunchStep, ...]:
        steps = (self.steps[number] for number in sorted(numbers))
        return tuple(step for step in steps if isinstance(step, LaunchStep))


@dataclass(frozen=True)
class Program:
    """What planner and engine follow: the compiler's L2, and the kernels of its steps.

    ``inputs`` (but for weights) and ``extents``: names of what the relation may read; ``numbers``:
    of inputs that casts compute with. ``fanout``:
    domain points of every source segment, or as many for ``every_rank``; see ``num_points_each``.
    ``runs``: how fields of the source are copied.
    ``buffers``: what a row of each holds, and in ``weights`` the input of that name.
    """

    inputs: tuple[str, ...]
    numbers: tuple[str, ...]
    extents: tuple[str, ...]
    fanout: int
    every_rank: bool
    relation: RelationSpec
    target: PackedSlots | DenseSlots
    runs: tuple[FieldRuns, ...]
    buffers: Mapping[str, tuple[FieldSpec, ...]]
    dispatch: PathSpec
    combine: PathSpec | None

    def num_points_each(self, num_ranks: int) -> int:
        """Domain points of every source segment."""
        return self.fanout * num_ranks if self.every_rank else self.fanout

    def among(self, num_ranks: int) -> Program:
        """The program of so many ranks, where every segment has a number of points."""
        return replace(self, fanout=self.num_points_each(num_ranks), every_rank=False)

    @property
    def exchange(self) -> Rules:
        """The rules of the network hop."""
        hop = self.dispatch.exchange
        assert hop.forwarder is not None
        assert hop.schedule is not None
        assert hop.slice_bytes is not None
        return Rules(hop.forwarder, hop.schedule, hop.slice_bytes)

    def with_rules(self, **changes: Any) -> Program:
        """The same program with other ``Rules``, only to be planned: its steps stay."""
        hop = self.dispatch.exchange
        steps = (replace(s, **changes) if s is hop else s for s in self.dispatch.steps)
        return replace(self, dispatch=replace(self.dispatch, steps=tuple(steps)))

    def copies_once(self, tier: Literal["node", "rank"]) -> bool:
        """Whether a segment goes to a node, or to a rank, once, however many points it has there:
        whether that is what copies on the way there are for."""
        return any(each.per == tier for each in self.dispatch.lists)

    @property
    def is_static(self) -> bool:
        """Whether rank and number of ranks alone decide the plan, so that it never changes."""
        return not self.extents and not self.inputs

    @property
    def given(self) -> tuple[str, ...]:
        """All inputs that a dispatch is given, but for weights."""
        return (*self.inputs, *self.numbers)

    @property
    def read(self) -> tuple[str, ...]:
        """What kernels that read a source are passed, as they call it: its fields, and numbers for
        those that casts compute of a call's."""
        return tuple(
            f"{buffer}.{field.name}"
            for buffer in ("source", "numbers")
            for field in self.buffers.get(buffer, ())
        )

    @property
    def is_compact(self) -> bool:
        """Whether a rank holds every segment once, in a row that slots refer to."""
        return self.target.kind == "packed" and self.target.compact

    @property
    def weight(self) -> FieldSpec | None:
        """The input with the weights of a combine."""
        return next(iter(self.buffers.get("weights", ())), None)

    @cached_property
    def launches(self) -> tuple[LaunchStep, ...]:
        """The steps of both paths that launch kernels."""
        return (*self.dispatch.launches, *(self.combine.launches if self.combine else ()))
