"""How several rows become one on the way back: the words behind ``reduce``, and what each takes."""

from __future__ import annotations

from dataclasses import dataclass

from fuscoc.lang.dtypes import INTEGERS, SUMMABLE


@dataclass(frozen=True)
class Reduction:
    """What the language says of a reduction.

    ``noun`` is what messages call its result, ``does`` says how it is made. ``dtypes`` are those
    of the fields that it takes. One that ``sums`` begins with 0, and may weigh its terms; any other
    begins with its first term.
    """

    noun: str
    does: str
    dtypes: frozenset[str]
    sums: bool = False


REDUCTIONS = {
    "sum": Reduction("a sum", "sums the rows of each segment", SUMMABLE, sums=True),
    "max": Reduction(
        "a maximum",
        "takes the largest of each segment's rows, element by element",
        SUMMABLE | INTEGERS,
    ),
}
