"""What all operations share: building, reading back, following symbols; contexts."""

from __future__ import annotations

import sys

import pytest

from fuscoc.dialect import new_context
from fuscoc.dialect.l0 import DefExtent, DefInput, DefPacked, DefPlacement, DefSegment
from fuscoc.dialect.l2 import ScatterRecv
from fuscoc.dialect.mlir import ir
from tests.dialect.support import PRELUDE, fresh_context, parse


def test_what_is_built_reads_back() -> None:
    fields = ({"name": "x", "type": ("f8e4m3", (64,))}, {"name": "scale", "type": ("f32", ())})
    with fresh_context():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            tensor = DefInput.build(sym_name="h", type=("i32", (None, 3)), role="extent")
            segment = DefSegment.build(sym_name="row", fields=fields)
            placement = DefPlacement.build(sym_name="p", kind="cyclic", num_keys=9)
            packed = DefPacked.build(
                sym_name="k", segment="row", placement="p", align=4, padding="fewest", compact=True
            )
        module.operation.verify()
        assert tensor.read("type") == ("i32", (None, 3))
        assert segment.read("fields") == fields
        assert placement.read("num_keys") == 9
        assert packed.read("segment") == "row"
        assert packed.read("compact") is True
        assert packed.read("capacity") is None
        assert "capacity" not in packed.attributes
        assert packed.follow("segment") == segment
        assert packed.follow("placement").read("kind") == "cyclic"
        assert placement.follow("table") is None


def test_absent_arrays_read_as_empty() -> None:
    with fresh_context():
        module = parse(PRELUDE)
        shuffle = next(op for op in module.body if op.operation.name == "fsc.shuffle")
        assert shuffle.read("runs") == ()


def test_unknown_attributes_cannot_be_built() -> None:
    with fresh_context(), pytest.raises(TypeError, match="unknown attributes: size"):
        DefExtent.build(sym_name="n", size=3)


def test_missing_attributes_cannot_be_built() -> None:
    with fresh_context(), pytest.raises(TypeError, match="missing a required argument"):
        ScatterRecv.build(list="x")


def test_contexts_are_independent() -> None:
    with fresh_context():
        first = parse(PRELUDE)
        with fresh_context():
            second = parse(PRELUDE)
        second.operation.verify()
        first.operation.verify()
        assert str(first) == str(second)


def test_bindings_find_the_dialect_once() -> None:
    """Without a module to find they would search the disk at every access to an operation."""
    searched: list[str] = []

    class Watch:
        def find_spec(self, name: str, *rest: object) -> None:
            searched.append(name)

    watch = Watch()
    sys.meta_path.insert(0, watch)
    try:
        with new_context(), ir.Location.unknown():
            assert [op.operation.name for op in parse(PRELUDE).body]
    finally:
        sys.meta_path.remove(watch)
    assert not [name for name in searched if name.endswith(".fsc")]
