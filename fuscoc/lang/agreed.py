"""Run-time extents that every rank gives for itself, and that all must give alike.

Who sends computes the slot and the rank, or the key, with extents of its own call. Most of these
are nobody else's: how many rows it has, or where they begin. A part that is multiplied by ``rank``
is every rank's, as what lower ranks have is counted by it; so is one that the extents of a dense
target have, too, since there it is that of the rank which receives.
"""

from __future__ import annotations

from fuscoc.lang.checked import RANK, BinaryOp, DenseTarget, PackedTarget, Scalar
from fuscoc.lang.scalars import extents, parts
from fuscoc.lang.scope import BUILTINS


def agreed_extents(target: PackedTarget | DenseTarget) -> tuple[str, ...]:
    """Names in the order in which the target's slot, and then its rank, or its key has them."""
    places: tuple[Scalar, ...]
    if isinstance(target, PackedTarget):
        places, there = (target.key,), set[str]()
    elif target.rank == RANK:  # nobody else's slots are meant
        return ()
    else:
        places, there = (target.slot, target.rank), {*extents(target.length)}
    found = [name for place in places for name in extents(place) if name in there]
    found += [name for place in places for name in _beside_rank(place)]
    return tuple(dict.fromkeys(name for name in found if name not in BUILTINS))


def _beside_rank(scalar: Scalar) -> list[str]:
    """Extents in products of which ``rank`` is in the other factor."""
    return [
        name
        for part in parts(scalar)
        if isinstance(part, BinaryOp) and part.op == "*"
        for one, other in ((part.lhs, part.rhs), (part.rhs, part.lhs))
        if RANK in parts(one)
        for name in extents(other)
    ]
