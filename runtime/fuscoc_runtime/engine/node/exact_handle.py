"""What a dispatch leaves behind where sizes are exact."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor

from fuscoc_runtime.engine.handle import refuse_to_pickle
from fuscoc_runtime.engine.node.handle import WENT, check_unchanged
from fuscoc_runtime.engine.weights import version

if TYPE_CHECKING:
    from fuscoc_runtime.engine.node.exact import Known
    from fuscoc_runtime.engine.node.exact_engine import ExactEngine
    from fuscoc_runtime.engine.node.rings import Launched


@dataclass(frozen=True, eq=False)
class ExactHandle:
    """The routing of one dispatch, to be combined any number of times, whatever comes later.

    Its memory is its own, and what it returns are copies. Nothing here waits.

    Attributes:
        keys: int64 [num_local_keys], the keys that live here, ascending; a dense target has none.
        extents: run-time extents of this rank.
        source_shapes: shape of every source field.
        weights: the weight input if it was given at dispatch, by name.
        reply: the routing of the way back, where its rows are those of a reply.
        table: the input that places keys, if one does, by name; no caller changes it.
        token: what operators know the routing by, if one of them made it.
        versions: of weights when the handle was made.
    """

    engine: ExactEngine
    known: Known
    extents: Mapping[str, int]
    source_shapes: Mapping[str, torch.Size]
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    reply: ExactHandle | None = None
    token: Tensor | None = None
    table: Mapping[str, Tensor] = field(default_factory=dict)
    versions: Mapping[str, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        versions = {name: version(each) for name, each in self.weights.items()}
        object.__setattr__(self, "versions", versions)

    @property
    def launched(self) -> Launched:
        """What combine needs of the dispatch."""
        return self.known.launched

    @property
    def num_slots(self) -> int:
        """Slots of this rank, padding included: rows that combine takes."""
        return self.launched.num_slots

    @property
    def num_rows(self) -> int:
        """Rows that this rank has got: one for every slot, unless the target is compact."""
        return self.known.num_rows

    @property
    def keys(self) -> Tensor:
        """A copy, as of all that is here."""
        return self._keys.clone()

    @property
    def num_keys(self) -> int:
        """Keys that live here."""
        return len(self._keys)

    @cached_property
    def _keys(self) -> Tensor:
        return self.engine.local_keys(self.table)

    @property
    def key_counts(self) -> Tensor:
        """int64 [num_local_keys], slots of each that are no padding."""
        return self.launched.key_counts[: self.num_keys].long()

    @property
    def key_offsets(self) -> Tensor:
        """int64 [num_local_keys + 1], first slot of each; the last is ``num_slots``."""
        starts = self.launched.key_starts[: self.num_keys].long()
        return torch.nn.functional.pad(starts, (0, 1), value=self.num_slots if len(starts) else 0)

    @property
    def row_index(self) -> Tensor | None:
        """int64 [num_slots], which of the rows that dispatch returned every slot of a compact
        target refers to, -1 for padding; None for other targets, whose rows lie in their slots."""
        index = self.launched.row_index
        return None if index is None else index.clone()

    def check_weights(self) -> None:
        """Raise if combine would find other weights than dispatch has sent, between nodes."""
        if self.engine.weighs_as_sent:
            check_unchanged(self.engine.checker, self.weights, self.versions, WENT)

    def __reduce__(self) -> NoReturn:
        refuse_to_pickle(self)

    def __repr__(self) -> str:
        return f"<ExactHandle of {self.engine.shuffle.name}: {self.num_slots} slots>"
