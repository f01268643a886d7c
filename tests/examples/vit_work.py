"""What ranks of the example of patches do, for the test that knows what should come of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from examples.vit_patches import Autoencoder, Packing, cut, dispatch, gradients
from fuscoc_runtime.face.shuffle import Shuffle

WIDTH = 16


def there_and_back(
    group: Any, artifact: str, packing: Packing, pictures: Sequence[Sequence[Any]]
) -> tuple[Any, list[Any], list[Any]]:
    """This rank's sequence, and its pictures as that brings them back and as its inverse does."""
    rank = dist.get_rank(group)
    mine = pictures[rank]
    with Shuffle(artifact, group=group) as shuffle:
        rows, handle = dispatch(shuffle, mine, packing, rank, torch.device("cpu"))
        back, inverse = (cut(shuffle.combine(each, handle), mine) for each in (rows, 255 - rows))
        return np.array(rows), back, inverse


def trained_on(group: Any, batches: Sequence[Any], total: int) -> tuple[float, list[Any]]:
    """The loss and the gradients on this rank; ``batches`` has patches, places and what is hidden
    of each rank."""
    torch.manual_seed(0)
    model = Autoencoder(WIDTH)
    given = [torch.from_numpy(each) for each in batches[dist.get_rank(group)]]
    loss = gradients(model, *given, total)
    return loss.item(), [np.array(each.grad) for each in model.parameters()]
