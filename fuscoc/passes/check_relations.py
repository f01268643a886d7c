"""L0 -> the same L0, known to be what the other passes rely on.

The language reports every mistake of a user; what fails here is a mistake of fuscoc. Checked are
the rules about what scalars depend on, which no verifier of a single operation can see.
"""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.base import PassError, ops_of, terminator
from fuscoc.dialect.dtypes import FLOATS
from fuscoc.dialect.expressions import (
    Expression,
    Monomial,
    Node,
    arguments,
    expression,
    looks_up,
    monomial,
)
from fuscoc.dialect.l0 import Combine, DefPacked, Shuffle, shuffle_of
from fuscoc.dialect.relation import Domain, Relate, must_be_apart
from fuscoc.lang.reductions import REDUCTIONS


def run(module: Any) -> None:
    for shuffle in ops_of(module, Shuffle):
        domain = terminator(shuffle, 0, Domain)
        relate = terminator(shuffle, 1, Relate)
        extents = [expression(value) for value in domain.extents]
        dims = [expression(value) for value in relate.dims]
        _check_extents(shuffle, extents)
        _check_raggedness(shuffle, relate, extents, dims)
        _check_source(shuffle, relate, dims)
        for cells in domain.cells:
            _check_cells(domain, expression(cells), dims)
        _check_target(shuffle, relate)
        if must_be_apart(relate) and not ops_of(module, Combine):
            raise PassError(shuffle, "needs segments apart, which do not come back")
    for combine in ops_of(module, Combine):
        _check_combine(combine)


def _check_extents(shuffle: Any, extents: list[Expression]) -> None:
    if arguments(extents[0]) or looks_up(extents[0]):
        raise PassError(shuffle, "has an outermost extent that depends on an index or an input")


def _check_raggedness(
    shuffle: Any, relate: Any, extents: list[Expression], dims: list[Expression]
) -> None:
    ragged = any(arguments(tree) or looks_up(tree) for tree in extents + dims)
    if ragged != shuffle.read("ragged"):
        raise PassError(shuffle, f"{'looks' if ragged else 'does not look'} extents up")
    if ragged and (
        expression(relate.starts[0]) != Node("argument", "0", ()) or relate.read("lengths")[0] != 1
    ):
        raise PassError(relate, "must subscript a ragged source with the outermost index")


def _check_source(shuffle: Any, relate: Any, dims: list[Expression]) -> None:
    starts = [expression(value) for value in relate.starts]
    for i, start in enumerate(starts):
        if any(number >= shuffle.read("num_source_dims") for number in arguments(start)):
            raise PassError(relate, f"has a start {i} that differs between copies of a segment")
        if isinstance(start, int) and start < 0:
            raise PassError(relate, f"has a block that leaves dim {i}")
    inner = zip(starts[1:], relate.read("lengths")[1:], dims, strict=True)
    for i, (start, length, dim) in enumerate(inner, 1):
        if arguments(dim) - {0}:
            raise PassError(relate, f"has a dim {i} that depends on an inner index")
        end = start + length if isinstance(start, int) else length
        if isinstance(dim, int) and end > dim:
            raise PassError(relate, f"has a block that leaves dim {i}")


def _check_cells(domain: Any, cells: Expression, dims: list[Expression]) -> None:
    wanted = Monomial(1)
    for dim in dims:
        wanted = wanted * monomial(dim)
    if monomial(cells) != wanted:
        raise PassError(domain, "counts other cells than its source's inner dims")


def _check_target(shuffle: Any, relate: Any) -> None:
    target = shuffle.follow("target")
    if not isinstance(target, DefPacked):
        return
    placement = target.attributes["placement"]
    owner = Node("fsc.owner", str(placement), (expression(relate.place),))
    if expression(relate.rank) != owner:
        raise PassError(relate, f"must send a key to its owner by {placement}")


def _check_combine(combine: Any) -> None:
    shuffle = shuffle_of(combine)
    kind = combine.read("kind")
    if kind == "copy" and shuffle.read("fanout") != 1:
        raise PassError(combine, f"would copy {shuffle.read('fanout')} rows to one place")
    if kind == "copy" and shuffle.read("every_rank"):
        raise PassError(combine, "would copy a row of every rank to one place")
    weight = combine.follow("weight")
    if weight is not None and weight.read("type")[0] not in FLOATS:
        raise PassError(combine, "must weigh by floating-point factors")
    fields = shuffle.follow("source").read("cells")
    for name, (dtype, _) in ((field["name"], field["type"]) for field in fields):
        if kind in REDUCTIONS and dtype not in REDUCTIONS[kind].dtypes:
            raise PassError(combine, f"must not {kind} field '{name}' of {dtype}")
