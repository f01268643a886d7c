"""What the CUDA kernels of one node are made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fuscoc_runtime.manifest.schema import PiecesSpec
from fuscoc_runtime.room import LEAST

PLAN_POINTS = 1024  # points of one CTA of the plan kernel, at most
WARP = 32
TABLE_WORDS = 2  # that ranks tell each other of a table
MAX_STAGED_PLANS = 4  # CTAs that plan in a staged dispatch, which has no more points than theirs


@dataclass(frozen=True)
class NodeProgram:
    """What the artifact says of a shuffle's CUDA kernels.

    ``launches`` maps ``<name>_plan``, ``_dispatch``, ``_staged`` unless ``places_results``,
    ``_refuse`` and, when it comes back, ``_combine`` to (threads, dynamic shared bytes); ``fields``
    are (dtype, elements of a row), and so are ``summed``, of rows that come back; the second of
    these has a ``_combine_1``, and so on. ``cubins`` is machine code of ``text`` by GPU, for those
    that need not compile it. The target is ``compact`` if it has one row for a segment and a rank.
    Dispatch ``scatters`` if a lane moves a row, whose slot it knows by then. If it
    ``sorts`` it plans, too, and short rows are moved by key: there is no ``_plan``, no ``_staged``.
    With ``given_slots`` the relation gives every point its slot, and there are no keys. With
    ``places_results`` planning stores where every segment lies; ``num_strides`` between its runs
    are known in calls alone. Where slots follow from ``pieces``, those of a ``ragged`` source are
    as many as inputs say. If segments must lie apart, a source cell of the first field has
    ``apart_elems``. Where rows go may depend on inputs, which it ``looks_up``. Of keys that are
    placed ``by_table`` ranks compare the table.
    """

    name: str
    text: str
    launches: dict[str, tuple[int, int]]
    fields: tuple[tuple[torch.dtype, int], ...]
    summed: tuple[tuple[torch.dtype, int], ...]
    fanout: int
    num_keys: int
    weighted: bool
    teams: int
    cubins: Mapping[str, bytes] = field(default_factory=dict)
    compact: bool = False
    scatters: bool = False
    sorts: bool = False
    given_slots: bool = False
    places_results: bool = False
    num_strides: int = 0
    pieces: PiecesSpec | None = None
    ragged: bool = False
    apart_elems: int = 0
    looks_up: bool = True
    by_table: bool = False

    @property
    def num_columns(self) -> int:
        """What ranks tell each other beside their segments. That are counts of rows, of every key
        and, for a compact target, every rank, and the number of a table, in two words. Of given
        slots it is how many they have."""
        if self.given_slots:
            return 1
        return self.num_keys + LEAST * self.compact + TABLE_WORDS * self.by_table

    def num_tiles(self, num_sources: int) -> int:
        """CTAs that plan, a tile of points each, with whole segments in a warp if compact. Where
        they move long rows, too, a warp has enough to do."""
        if self.sorts and self.scatters:
            return max(1, -(-num_sources // WARP))
        of_warp = WARP // self.fanout * self.fanout if self.compact else WARP
        return max(1, -(-num_sources * self.fanout // (PLAN_POINTS // WARP * of_warp)))
