"""Pieces against the points of the relation that they are made of, and against numpy."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fuscoc.dialect.affine import nested
from fuscoc.dialect.polynomials import Polynomial
from fuscoc.lang.check import check_file
from fuscoc.source import SourceFile
from tests import specs as examples
from tests.dialect.support import edited
from tests.passes.interpreter import Rank
from tests.passes.points import Split, moved, ordered, ranks_of
from tests.passes.relations import Spec, calls, specs

CALLS = 10  # of a spec, each with sizes of its own
NIGHTLY_CALLS = 20


@lru_cache(maxsize=64)
def split(text: str, **defines: int) -> Split:
    (shuffle,) = check_file(SourceFile("split.fsc", text), defines).shuffles
    return Split.of(shuffle)


def split_example(name: str, **defines: int) -> Split:
    return split(examples.example(f"{name}.fsc").text, **defines)


def check_calls(spec: Spec, data: st.DataObject, num_calls: int) -> None:
    """Pieces claim every point once, whatever the sizes are, and are disjoint if they say so."""
    found = split(spec.text)
    assume(found.num_pieces)
    for _ in range(num_calls):
        for each in data.draw(calls(spec)):
            rank = found.with_cells(each)
            points = ordered(found.relation(rank, found.pieces.read("outer")))
            assert np.array_equal(ordered(found.enumerated(rank)), points)
            if found.pieces.read("disjoint") and len(points):
                cells = found.cells(points)
                assert len(np.unique(cells)) == cells.size


@settings(max_examples=25)
@given(specs(), st.data())
def test_every_point_is_in_one_piece(spec: Spec, data: st.DataObject) -> None:
    check_calls(spec, data, CALLS)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@settings(max_examples=1000)
@given(specs(), st.data())
def test_every_point_is_in_one_piece_at_night(spec: Spec, data: st.DataObject) -> None:
    check_calls(spec, data, NIGHTLY_CALLS)


PIECES = {
    "fft_transpose": 2,
    "kv_cache": 1,
    "kv_pages": 1,
    "redistribute": 3,
    "ulysses": 2,
    "vit_patches": 1,
    "vit_patches_nchw": 1,
    "vit_unpack": 1,
}


@pytest.mark.parametrize("name", examples.EXAMPLE_NAMES)
def test_which_examples_are_split(name: str) -> None:
    assert split_example(name).num_pieces == PIECES.get(name, 0)


@pytest.mark.parametrize("name", PIECES)
def test_which_examples_are_disjoint(name: str) -> None:
    """Two moves may name one page of a cache, where no run looks for that."""
    assert split_example(name).pieces.read("disjoint") == (name != "kv_cache")


PLAIN = """
shuffle plain {
  index t : tokens
  index z : slots
  segment row { x : bf16[8] }
  segment other { x : f16[8] }
  layout rows[t] of row
  layout out[s] of row  dense(slots)
  dispatch rows[t] -> out[t] on 0
}"""
FANOUT = edited(PLAIN, ("index z", "index k : 2\n  index z"), ("on 0", "on k"))
TABLE = edited(
    PLAIN,
    ("out[t] on", "out[to(t)] on"),
    ("  dispatch", "  route to(t) -> slot = input slot : int64\n  dispatch"),
)
PACKED = edited(
    PLAIN,
    ("out[s] of row  dense(slots)", "out[t, s] of row  packed(s)\n  place t on rank by block"),
    ("out[t] on 0", "out[t, *]"),
    ("tokens", "8"),
)
LONG = " * ".join(["(aa + bb + cc + dd)"] * 12)  # too many terms to be multiplied out
PRODUCT = edited(PLAIN, ("index z", "index k : heads\n  index z"), ("rows[t]", "rows[t, k]"))
TWICE = edited(PRODUCT, ("on 0", "on (t + k) % ranks"))


@pytest.mark.parametrize(
    ("text", "num_pieces"),
    [
        (PLAIN, 1),
        (edited(PLAIN, ("of row  d", "of other  d"), ("on 0", "on 0  cast(x)")), 0),
        (FANOUT, 1),
        (edited(FANOUT, ("on k", "on k\n  combine reverse reduce sum")), 0),
        (edited(PLAIN, ("on 0", "on 0\n  combine reverse")), 1),
        (edited(PLAIN, ("out[t]", "out[t * tokens / (tokens * ranks)]")), 2),
        (edited(PLAIN, ("out[t]", "out[t * slots / (slots * ranks)]")), 0),  # ranks compare
        (edited(PLAIN, ("out[t]", "out[(t + rank * 5) / (ranks + 1)]")), 3),
        (edited(PLAIN, ("index t : tokens", f"index t : tokens / ({LONG})")), 0),
        (TABLE, 0),
        (TABLE.replace("bf16[8]", "bf16[8192]"), 1),
        (PACKED, 0),
        (PRODUCT.replace("out[t]", "out[t * heads + k]"), 1),
        (PRODUCT.replace("out[t]", "out[t * k]"), 0),
        (TWICE, 0),
        (TWICE.replace("(t + k) %", "(t * ranks + k) %"), 2),
        (TWICE.replace("(t + k) % ranks", "t + k"), 0),
        (TWICE.replace("(t + k) % ranks", "t + k").replace("heads", "1"), 1),
        (edited(PLAIN, ("out[t]", "out[min(t, 5)]")), 2),
        (edited(PLAIN, ("out[t]", "out[max(t - rank, 0) / 4]")), 4),
        (edited(PLAIN, ("out[t]", "out[min(t, t + rank - 3)]")), 1),
        (edited(PLAIN, ("out[t]", "out[max(t, 0 - rank)]")), 1),
        (edited(PLAIN, ("out[t]", "out[max(9 - t * ranks, 2)]")), 2),
        (edited(PLAIN, ("out[t]", "out[min(t * tokens, 9)]")), 0),  # of what may be 0
        (edited(PLAIN, ("on 0", "on min(t / 4, ranks - 1)")), 3),
        (edited(PLAIN, ("on 0", "on max(ranks - 1 - t / 4, 0)")), 3),
        (edited(PLAIN, ("on 0", "on t / 4 % ranks"), ("out[t]", "out[t / (4 * ranks)]")), 3),
        (PRODUCT.replace("out[t]", "out[min(t * heads + k, 9)]"), 0),
        (PRODUCT.replace("out[t]", "out[min(t * heads + k, 9)]").replace("heads", "4"), 4),
    ],
)
def test_what_is_split(text: str, num_pieces: int) -> None:
    assert split(text).num_pieces == num_pieces


VIEWS = """
shuffle views {
  index n : images
  index i : rows
  index z : slots
  segment part { x : u8[RUN, 4] }
  layout all[LAYOUT] of u8[4]  dense(DIMS)
  view v[n, i] = all[PLACE]
  layout out[z] of part
  dispatch v[n, i] -> out[n * 7 + i] on 0
}"""


def views(place: str, dims: str, run: int = 1, layout: str = "a, b") -> str:
    text = VIEWS.replace("PLACE", place).replace("DIMS", dims).replace("LAYOUT", layout)
    return text.replace("[RUN, 4]", f"[{run}, 4]" if run > 1 else "[4]")


RAGGED = views("n, i*3 .. i*3+3", "w(n)", 3, "n, y").replace(": rows", ": w(n) / 3")


@pytest.mark.parametrize(
    ("text", "disjoint"),
    [
        (views("n, i", "images, rows"), True),
        (views("i, n", "rows, images"), True),
        (views("n, i*3 .. i*3+3", "images, rows * 3", 3), True),
        (views("n, i*3 .. i*3+2", "images, rows * 3", 2), True),
        (views("n, i*3+1 .. i*3+3", "images, rows * 3", 2), True),
        (views("n, i*3 .. i*3+4", "images, rows * 3 + 1", 4), False),
        (
            views("0 .. 2, n*5+1", "3, images * 5", 2)
            .replace("v[n, i] =", "v[n] =")
            .replace("v[n, i] ->", "v[n] ->")
            .replace("+ i]", "]")
            .replace("index i : rows\n", ""),
            True,
        ),
        (views("n / 2, i", "images, rows"), False),
        (views("n, 0 .. 2", "images, 2", 2), False),
        (views("n + i", "images + rows", layout="a"), False),
        (views("i, n*2 .. n*2+2", "rows, images * 2", 2), True),
        (RAGGED, True),
        (RAGGED.replace("3 .. i*3+3", "3 .. i*3+2").replace("[3, 4]", "[2, 4]"), True),
        (edited(RAGGED, ("i*3 ..", "i*3+1 .."), ("[3, 4]", "[2, 4]")), False),
        (RAGGED.replace("index z", "index f : 2\n  index z").replace("on 0", "on f"), False),
        (RAGGED.replace("index z", "index f : 1\n  index z").replace("on 0", "on f"), True),
    ],
)
def test_what_is_disjoint(text: str, disjoint: bool) -> None:
    assert split(text).pieces.read("disjoint") == disjoint


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), max_size=4), st.integers(1, 4))
def test_nested_steps_step_over_each_other(steps: list[tuple[int, int]], length: int) -> None:
    """Each found length is one that the places stay below; all are different."""
    constant = Polynomial.constant
    found = nested([(constant(count), constant(step)) for count, step in steps], constant(length))
    assume(found is not None)
    assert found is not None
    numbers = product(range(length), *(range(count) for count, _ in steps))
    strides = [1, *(step for _, step in steps)]
    places = [sum(map(int.__mul__, each, strides)) for each in numbers]
    assert len(set(places)) == len(places)
    assert found.known is not None
    assert max(places) < found.known


Places = dict[tuple[int, int], list[tuple[int, int]]]


def brought(found: Split, ranks: list[Rank]) -> Places:
    """What pieces bring to every rank and slot: the ranks and cells that it comes from."""
    places: Places = {}
    for rank, slot, source, *cells in moved(found, ranks).tolist():
        assert (rank, slot) not in places
        places[rank, slot] = [(source, cell) for cell in cells]
    return places


def laid_out(targets: list[Any]) -> Places:
    """The same of what every rank should have: slots of cells of a rank."""
    return {
        (rank, slot): [(int(source), int(cell)) for source, cell in cells.reshape(-1, 2)]
        for rank, target in enumerate(targets)
        for slot, cells in enumerate(target)
    }


def numbered(num_ranks: int, *shape: int) -> Any:
    """An array for each rank, of pairs: the rank and the number of a cell."""
    cells = np.indices((num_ranks, int(np.prod(shape)))).reshape(2, num_ranks, *shape)
    return np.moveaxis(cells, 0, -1)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 6, 8, 12, 24])
def test_rows_that_are_dealt_out(num_ranks: int) -> None:
    """Also to more ranks than a rank has rows."""
    rows = numbered(num_ranks, 24 // num_ranks).reshape(24, 2)
    found = brought(split_example("redistribute", rows=24), ranks_of(num_ranks))
    assert found == laid_out([rows[rank::num_ranks] for rank in range(num_ranks)])


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_planes_that_are_transposed(num_ranks: int) -> None:
    ny, nz = 8, 12
    lines = numbered(num_ranks, nz // num_ranks, ny).reshape(nz, ny, 2)
    targets = np.split(lines.swapaxes(0, 1), num_ranks)
    found = brought(split_example("fft_transpose", nx=2, ny=ny, nz=nz), ranks_of(num_ranks))
    assert found == laid_out([target.reshape(-1, 2) for target in targets])


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 6])
def test_heads_of_a_sequence(num_ranks: int) -> None:
    blocks, block, heads = 12, 3, 6
    cells = numbered(num_ranks, blocks // num_ranks, block, heads)
    cells = cells.reshape(blocks, block, heads, 2).transpose(2, 0, 1, 3)
    targets = [each.reshape(-1, block, 2) for each in np.split(cells, num_ranks)]
    sizes = {"tokens": blocks * block, "heads": heads, "block": block}
    assert brought(split_example("ulysses", **sizes), ranks_of(num_ranks)) == laid_out(targets)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=4))
def test_patches_of_pictures(patches: list[tuple[int, int]]) -> None:
    """All but the last picture go to a rank one behind the other; that is dropped."""
    p, slot, targets = 2, 0, []
    first = np.cumsum([0, *(rows * cols * p * p for rows, cols in patches)])
    packing = []
    for at, (rows, cols) in enumerate(patches):
        dropped = at == len(patches) - 1
        packing.append([-1 if dropped else 0, slot])
        if not dropped:
            picture = np.arange(rows * cols * p * p).reshape(rows, p, cols, p) + first[at]
            cells = picture.swapaxes(1, 2).reshape(rows * cols, p * p)
            targets.append(np.stack([np.zeros_like(cells), cells], axis=-1))
            slot += rows * cols
    inputs = {
        "height": np.array([rows * p for rows, _ in patches]),
        "width": np.array([cols * p for _, cols in patches]),
        "packing": np.array(packing),
    }
    rank = Rank({"images": len(patches), "length": 99}, inputs)
    expected = np.concatenate([np.zeros((0, p * p, 2), dtype=int), *targets])
    assert brought(split_example("vit_patches", p=p), [rank]) == laid_out([expected])


def test_pages_of_a_cache() -> None:
    layers, pages = 3, 5
    inputs = {
        "source_page": np.array([4, -1, 2, 0]),
        "destination": np.array([[0, 1], [0, 0], [0, 2], [-1, 0]]),
    }
    rank = Rank({"moves": 4, "pages": pages, "slots": 9}, inputs)
    cells = numbered(1, layers, pages)[0]
    expected = {(0, 1): cells[:, 4], (0, 2): cells[:, 2]}
    found = brought(split_example("kv_pages", layers=layers), [rank])
    assert found == {place: list(map(tuple, each.tolist())) for place, each in expected.items()}
