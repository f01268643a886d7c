"""Run-time extents that every rank gives for itself, and that all must give alike.

Who sends computes the slot and the rank, or the key, with extents of its own call. Most of these
are nobody else's: how many rows it has, or where they begin. A part that is multiplied by ``rank``
is every rank's, as what lower ranks have is counted by it, and so is one that divides such a count
or ``rank`` itself, since it says who has which part of it; and one that the extents of a dense
target have, too, which there is that of the rank that receives.
"""

from __future__ import annotations

from fuscoc.lang.checked import DIVISIONS, RANK, BinaryOp, DenseTarget, PackedTarget, Scalar
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
    """Extents in products of which ``rank`` is in the other factor, and that divide such or it."""
    operations = [part for part in parts(scalar) if isinstance(part, BinaryOp)]
    factors = [
        other
        for part in operations
        if part.op == "*"
        for one, other in ((part.lhs, part.rhs), (part.rhs, part.lhs))
        if RANK in parts(one)
    ]
    divisors = [part.rhs for part in operations if part.op in DIVISIONS and _counts(part.lhs)]
    return [name for part in (*factors, *divisors) for name in extents(part)]


def _counts(dividend: Scalar) -> bool:
    """Whether it is ``rank``, or counts what lower ranks have."""
    return dividend == RANK or any(
        isinstance(part, BinaryOp) and part.op == "*" and RANK in parts(part)
        for part in parts(dividend)
    )
