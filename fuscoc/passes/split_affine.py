"""``fsc.node_given`` -> ``fsc.node_pieces``, where slots follow from few numbers and strides.

What inputs do not decide is affine (``fuscoc.dialect.affine``). An entry of what they do decide, an
image or a page, has a few pieces, and a shuffle without inputs is one entry. Kernels then compute
addresses: there is nothing to look up for a segment. It pays unless entries are short rows
themselves, and is possible where rows stay as they are.
"""

from __future__ import annotations

from typing import Any

from fuscoc.dialect.affine import NotAffine, Relation, nested
from fuscoc.dialect.base import ops_of, terminator
from fuscoc.dialect.boxes import WAYS_APART, Box
from fuscoc.dialect.dtypes import num_bytes
from fuscoc.dialect.expressions import Expression, arguments, expression, looks_up, nodes
from fuscoc.dialect.expressions import Node as Tree
from fuscoc.dialect.fused import NodeCopy, NodeGiven, NodePieces, NodePoints, NodeReduce
from fuscoc.dialect.mlir import arith, ir
from fuscoc.dialect.node import Node
from fuscoc.dialect.pieces import Piece
from fuscoc.dialect.polynomials import Derived, Polynomial, Product, Value, Variable
from fuscoc.dialect.relation import Domain, Drop, Point, must_be_apart
from fuscoc.dialect.row_fields import LoadField

MIN_ENTRY_BYTES = 16384  # rows from so many bytes on are worth an entry of a table each
BASE = Tree("fsc.cell_base", "", (Tree("argument", "0", ()),))
DERIVED = {"floordiv": arith.floordivsi, "min": arith.minsi, "max": arith.maxsi}


def run(module: Any) -> None:
    for node in ops_of(module, Node):
        for given in ops_of(node, NodeGiven):
            if _keeps_rows(node):
                _split(node, given)


def _keeps_rows(node: Any) -> bool:
    """Whether rows arrive as they leave, each at one place, and come back alone."""
    (points,), (copy,) = ops_of(node, NodePoints), ops_of(node, NodeCopy)
    loads = ops_of(copy, LoadField)
    stored = [op.operands[0] for op in copy.rows.blocks[0] if not op.results]
    back = ops_of(node, NodeReduce)
    one = len(loads) == points.read("fanout") == 1
    alone = all(reduce.kind == "copy" and one for reduce in back)
    alone &= not points.read("every_rank")
    return alone and stored == [load.value for load in loads]


def _split(node: Any, given: Any) -> None:
    (points,), (copy,) = ops_of(node, NodePoints), ops_of(node, NodeCopy)
    domain, point = terminator(points, 0, Domain), terminator(points, 1, Point)
    extents = [expression(value) for value in domain.extents]
    ends = [expression(value) for value in (point.src_offset, point.rank, point.place)]
    others = [expression(value) for value in point.src_strides]
    others += [expression(op.value) for op in point.operation.block if isinstance(op, Drop)]
    outer = _outer([*ends, *others, *extents], points)
    loads = ops_of(copy, LoadField)
    row_bytes = sum(load.read("seg_elems") * num_bytes(load.read("dtype")) for load in loads)
    if len(outer) == len(extents) and row_bytes < MIN_ENTRY_BYTES:
        return
    ragged = points.read("ragged")
    if any(arguments(extents[index]) for index in outer) or (ragged and len(outer) > 1):
        return  # entries would have sizes that differ, or several of one that is counted
    try:
        relation = Relation(extents, outer)
        boxes = relation.boxes(ends)
        [relation.polynomial(tree, {}) for tree in others]
    except NotAffine:
        return
    # A piece is dropped whole, so one that goes to several ranks must not be.
    may_drop = any(isinstance(op, Drop) for op in point.operation.block)
    may_drop |= any(node.op == "fsc.inside" for each in ends for node in nodes(each))
    if any(_moves(box, rank) > (not may_drop) for box, (_, rank, _) in boxes):
        return
    disjoint = must_be_apart(point) or _is_disjoint(points, loads[0])
    with ir.InsertionPoint(given), given.location:
        pieces = NodePieces.build(
            given.points, given.counts, disjoint=disjoint, outer=tuple(sorted(outer))
        )
        block = pieces.entry.blocks.append(*[ir.IntegerType.get_signless(64)] * len(outer))
        with ir.InsertionPoint(block):
            writer = _Writer(points, sorted(outer), block)
            for op in point.operation.block:
                if isinstance(op, Drop):
                    Drop.build(writer.tree(expression(op.value)))
            for box, values in boxes:
                writer.piece(box, values, point)
    given.slots.replace_all_uses_with(pieces.slots)
    given.operation.erase()


def _outer(trees: list[Expression], points: Any) -> frozenset[int]:
    """The indices that inputs are looked up by, and the outermost one of a ragged source."""
    found = {0} if points.read("ragged") else set[int]()
    for tree in trees:
        for node in nodes(tree):
            if looks_up(node) and node.op in ("fsc.lookup", "fsc.inside"):
                found |= arguments(node)
    return frozenset(found)


def _is_disjoint(points: Any, load: Any) -> bool:
    """Whether it is seen that no two points have a source cell in common."""
    domain, point = terminator(points, 0, Domain), terminator(points, 1, Point)
    ragged = points.read("ragged")
    extents = [expression(each) for each in domain.extents]
    try:
        relation = Relation(extents, frozenset([0] if ragged else []))
        box = relation.whole()
        first = relation.polynomial(expression(point.src_offset), box.indices, box)
        strides = [relation.polynomial(expression(each), {}) for each in point.src_strides]
        cells = [relation.polynomial(expression(each), {}) for each in domain.cells]
    except (NotAffine, *WAYS_APART):
        return False
    steps = [(each.count, first.factor_of(each.variable)) for each in box.ranges]
    for dim in load.read("run_dims"):
        step = dim["src_stride"]
        if isinstance(step, str):
            stride = strides[int(step.removeprefix("src_stride"))]
        else:
            stride = Polynomial.constant(step)
        steps.append((Polynomial.constant(dim["count"]), stride))
    run = Polynomial.constant(load.read("run_elems") // load.read("cell_elems"))
    length = nested(steps, run)
    if length is None or not ragged:
        return length is not None
    begin = first.without_variables - relation.polynomial(BASE, {})
    return begin.is_natural and (cells[0] - begin - length).is_natural


def _moves(box: Box, rank: Polynomial) -> int:
    """How many of its ranges a box's rank depends on."""
    return sum(rank.factor_of(each.variable).known != 0 for each in box.ranges)


class _Writer:
    """Writes polynomials as operations, each once."""

    def __init__(self, points: Any, outer: list[int], block: Any) -> None:
        self._outer = {str(index): block.arguments[i] for i, index in enumerate(outer)}
        regions = points.operation.regions
        self._values = {
            expression(result): result
            for region in regions
            for op in region.blocks[0]
            for result in op.operation.results
        }
        self._made: dict[object, Any] = {}

    def piece(self, box: Box, values: list[Polynomial], point: Any) -> None:
        begins = [self._at_begin(value, box) for value in values]
        strides = [[value.factor_of(each.variable) for each in box.ranges] for value in values]
        Piece.build(
            *map(self.polynomial, begins),
            [self.polynomial(each.count) for each in box.ranges],
            *([self.polynomial(each) for each in group] for group in strides),
            [self.tree(expression(value)) for value in point.src_strides],
        )

    def _at_begin(self, value: Polynomial, box: Box) -> Polynomial:
        result = value.without_variables
        for each in box.ranges:
            result += value.factor_of(each.variable) * each.begin
        return result

    def polynomial(self, value: Polynomial) -> Any:
        if value not in self._made:
            self._made[value] = self._sum(value)
        return self._made[value]

    def _sum(self, value: Polynomial) -> Any:
        total = None
        for product, factor in sorted(value.terms, key=lambda term: term[1] < 0):
            term = self._product(product, abs(factor))
            if total is None:
                total = term if factor > 0 else arith.subi(self._constant(0), term)
            else:
                total = (arith.addi if factor > 0 else arith.subi)(total, term)
        return self._constant(0) if total is None else total

    def _product(self, product: Product, factor: int) -> Any:
        if not product:
            return self._constant(factor)
        if factor == 1 and len(product) == 1:
            return self._atom(product[0])
        if (factor, product) not in self._made:
            before = self._product(product[:-1], factor)
            self._made[factor, product] = arith.muli(before, self._atom(product[-1]))
        return self._made[factor, product]

    def _atom(self, atom: Value | Variable | Derived) -> Any:
        if atom not in self._made:
            assert not isinstance(atom, Variable)
            if isinstance(atom, Value):
                self._made[atom] = self.tree(atom.tree)
            else:
                operands = self.polynomial(atom.lhs), self.polynomial(atom.rhs)
                self._made[atom] = DERIVED[atom.op](*operands)
        return self._made[atom]

    def tree(self, tree: Expression) -> Any:
        """A value of the relation's regions, of the outer indices here."""
        if isinstance(tree, int):
            return self._constant(tree)
        if tree.op == "argument":
            return self._outer[tree.symbol]
        if tree not in self._made:
            operands = [self.tree(each) for each in tree.operands]
            copy = self._values[tree].owner.clone()
            for position, operand in enumerate(operands):
                copy.operands[position] = operand
            self._made[tree] = copy.results[0]
        return self._made[tree]

    def _constant(self, value: int) -> Any:
        if value not in self._made:
            self._made[value] = arith.constant(ir.IntegerType.get_signless(64), value)
        return self._made[value]
