"""Where casts end up: in the copies that run anyway, the shorter rows on the network."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fuscoc.dialect.attrs import verify
from fuscoc.dialect.base import PassError, ops_of
from fuscoc.dialect.l2 import GatherSend, ScatterRecv
from fuscoc.dialect.path import Path
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.passes import specialise_kernels
from fuscoc.pipeline import compile_to_ir
from tests import specs


def widened() -> CheckedShuffle:
    """``moe_fp8`` the other way round: the source has fp8 and scales, the target bf16."""
    narrow = specs.moe_fp8(hidden=256, block=32)
    source = replace(narrow.source, fields=narrow.fields)
    return replace(narrow, fields=narrow.source.fields, source=source, combine=None)


def moves(checked: CheckedShuffle) -> dict[tuple[str, ...], str | None]:
    """What every copy moves, by its ends."""
    module = compile_to_ir(checked, after="fuse-transforms").module
    with module.context:
        return {
            (copy.reads, *copy.writes): copy.read("moves")
            for path in ops_of(module, Path)
            for copy in ops_of(path, GatherSend, ScatterRecv)
        }


@pytest.mark.parametrize(
    ("checked", "packed", "forwarded"),
    [(specs.moe_fp8(), "cast", "target"), (widened(), "source", "cast")],
    ids=["narrow", "wide"],
)
def test_shorter_rows_cross_the_network(
    checked: CheckedShuffle, packed: str, forwarded: str
) -> None:
    assert moves(checked) == {
        ("source", "slices"): packed,
        ("source", "target"): "cast",
        ("landing", "target"): forwarded,
        ("target", "target"): "target",
    }


@pytest.mark.parametrize("checked", [specs.moe(), specs.vit_patches()])
def test_nothing_to_cast(checked: CheckedShuffle) -> None:
    assert set(moves(checked).values()) == {None}
    before = compile_to_ir(checked, after="form-slices").text
    assert compile_to_ir(checked, after="fuse-transforms").text == before


@pytest.mark.parametrize("copy", [0, 1, 2, 3])
def test_copies_of_a_shuffle_that_casts_say_what_they_move(copy: int) -> None:
    """Rows that nobody casts would arrive as they left."""
    module = compile_to_ir(specs.moe_fp8(), after="choose-tiles").module
    with module.context:
        (dispatch, _) = ops_of(module, Path)
        step = ops_of(dispatch, GatherSend, ScatterRecv)[copy]
        del step.attributes["moves"]
        verify(module)
        with pytest.raises(PassError, match="must say which rows it moves"):
            specialise_kernels.run(module)
