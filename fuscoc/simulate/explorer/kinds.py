"""Links by kind and by whose they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fuscoc.simulate.explorer.words import resource
from fuscoc.simulate.record import OWNER, Float64Array, Int64Array, Links


@dataclass(frozen=True, eq=False)
class Kind:
    """Links of one kind and direction. ``owner``: what ``place`` numbers; ``ids``: int64 [K], the
    links; ``place``: int64 [K], whose each is, below ``count``."""

    name: str
    label: str
    owner: str
    ids: Int64Array
    place: Int64Array
    count: int

    def total(self, values: Float64Array) -> Float64Array:
        """float64 [count]: the sum over every owner's links of ``values`` [L]."""
        return np.bincount(self.place, values[self.ids], self.count).astype(np.float64)

    def worst(self, values: Float64Array) -> Float64Array:
        """float64 [count]: the largest of every owner's links; 0 where it has none."""
        most = np.zeros(self.count)
        np.maximum.at(most, self.place, values[self.ids])
        return most


def kinds_of(links: Links) -> Sequence[Kind]:
    """Every kind and direction of links, in the order in which they come first."""
    pairs = list(zip(links.kind, links.direction, strict=True))
    found = []
    for kind, direction in dict.fromkeys(pairs):
        ids = np.array([number for number, pair in enumerate(pairs) if pair == (kind, direction)])
        place = links.owner[ids]
        label = f"{resource(kind)}, {direction}" if direction else resource(kind)
        name = f"{kind} {direction}".strip()
        found.append(Kind(name, label, OWNER[kind], ids, place, int(place.max()) + 1))
    return found
