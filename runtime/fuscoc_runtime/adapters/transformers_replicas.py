"""The ranks of other groups that hold the same experts as this one."""

from __future__ import annotations

from typing import Self

import torch.distributed as dist
from torch import Tensor

from fuscoc_runtime.adapters.transformers_blocks import EXPERTS
from fuscoc_runtime.comm.group import Group, process_group


class Replicas:
    """One rank of every group of experts in the job, or nobody else.

    Attributes:
        rank: this one's place among them.

    Args:
        group: these ranks; None where nobody said.
        num_ranks: of a group of experts.
    """

    def __init__(self, group: Group | None, num_ranks: int) -> None:
        self._group = None if group is None else process_group(group)
        self._unsaid = group is None and dist.is_initialized() and dist.get_world_size() > num_ranks
        self.rank = 0 if self._group is None else dist.get_rank(self._group)

    def mean(self, gradient: Tensor) -> Tensor:
        """The mean of all their gradients, perhaps in the memory of this one; collective.

        Raises:
            AdapterError: the job has ranks of which nobody said whether they are replicas: what
                they hold would drift away from this.
        """
        if self._unsaid:
            raise EXPERTS.problem(
                "the job has more ranks than the experts' group: `replicas` has to say which of "
                "them hold the same experts, so that gradients are averaged over them"
            )
        if self._group is not None:
            gradient = gradient.contiguous()
            dist.all_reduce(gradient, group=self._group)
            gradient /= dist.get_world_size(self._group)
        return gradient

    def __deepcopy__(self, _: object) -> Self:
        """Itself, as a copy of a model has the same ranks."""
        return self
