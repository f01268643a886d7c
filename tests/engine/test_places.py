"""What points look up by values of inputs, and compute from them, against plain torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

import fuscoc
from fuscoc_runtime.errors import IndexOutOfRangeError, SourceOverlapError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact
from fuscoc_runtime.topology import Topology

EXAMPLE = Path(__file__).parents[2] / "examples" / "kv_pages.fsc"
ONE_WAY = EXAMPLE.read_text().replace("kv_pages {", "one_way {").replace("  combine  reverse\n", "")
CHOSEN = """
shuffle chosen {
  index t : tokens
  index c : 3
  index e : 6

  segment token { x : f32[4] }

  layout  table[t, c]  of token
  layout  bins[e, s]   of token  packed(s)

  place   e on rank by cyclic
  route   pick(t) -> c  = input picks : int64
  route   bin(t) -> e   = input bins_of : int64
  view    mine[t] = table[t, pick(t)]

  dispatch mine[t] -> bins[bin(t), *]
  combine  reverse
}
"""
DOCUMENTS = """
shuffle documents {
  index t : tokens
  index d : documents
  index e : 6

  segment token { id : i64 }

  layout  by_token[t]  of token
  layout  bins[e, s]   of token  packed(s)

  place   e on rank by cyclic
  route   document(t) -> d  = input document_idx : int32
  route   bin(d) -> e       = input bin_idx : int64

  dispatch by_token[t] -> bins[bin(document(t)), *]
}
"""

HALVED = f"""
shuffle halved {{
  index t : tokens
  index e : 6

  segment token {{ id : i64 }}

  layout  by_token[t]  of token
  layout  bins[e, s]   of token  packed(s)

  place   e on rank by cyclic
  route   id(t) -> value  = input ids : int64
  route   bin(t) -> e     = (id(t) - 1){" / 2" * 12} % 6

  dispatch by_token[t] -> bins[bin(t), *]
}}
"""


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> list[Artifact]:
    path = tmp_path_factory.mktemp("places")
    sizes = {"layers": 3, "page": 2, "heads": 1, "width": 4}
    built = [
        fuscoc.compile(EXAMPLE, path / "pages", **sizes),
        fuscoc.compile(ONE_WAY, path / "one_way", **sizes),
        fuscoc.compile(CHOSEN, path / "chosen"),
        fuscoc.compile(DOCUMENTS, path / "documents"),
        fuscoc.compile(HALVED, path / "halved"),
    ]
    return [load_artifact(each) for each in built]


@pytest.fixture(scope="module")
def shuffles(artifacts: list[Artifact]) -> dict[str, LockstepShuffle]:
    topology = Topology.parse("2x2")
    opened = [LockstepShuffle(each, topology=topology) for each in artifacts]
    return {each.spec.name: each for each in opened}


def named(source: Tensor, to: Tensor, slots: int = 8) -> dict[str, object]:
    return {"source_page": source, "destination": to, "slots": slots}


def test_pages_are_gathered_where_an_input_says(shuffles: dict[str, LockstepShuffle]) -> None:
    """Also the same page twice, if it need not come back, and none where it is -1."""
    random = torch.Generator().manual_seed(0)
    num_pages = (5, 2, 0, 3)
    caches = [torch.randn(3, n, 2, 2, 1, 4, generator=random).bfloat16() for n in num_pages]
    moves = [[(4, 1, 0), (0, 3, 7), (4, 2, 1)], [(-1, 0, 0), (1, 0, 3)], [(-1, -1, 9)], []]
    tables = [torch.tensor(each, dtype=torch.int64).reshape(-1, 3) for each in moves]
    shuffle = shuffles["one_way"]
    dispatched = shuffle.dispatch(
        [[each] for each in caches], [named(each[:, 0], each[:, 1:]) for each in tables]
    )
    for source, mine in enumerate(moves):
        for page, rank, slot in mine:
            if page >= 0:
                wanted = caches[source][:, page]
                assert torch.equal(dispatched[rank].rows["x"][slot], wanted)


@pytest.mark.parametrize("topology", ["1x4", "2x2"])
@given(data=st.data())
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pages_come_back_to_where_they_were(
    artifacts: list[Artifact], topology: str, data: st.DataObject
) -> None:
    """Others are 0, and so are those that were sent to nobody."""
    shuffle = LockstepShuffle(artifacts[0], topology=Topology.parse(topology))
    slots = data.draw(st.permutations([(rank, slot) for rank in range(4) for slot in range(8)]))
    caches, tables = [], []
    for rank in range(4):
        num_pages = data.draw(st.integers(0, 6))
        pages = data.draw(st.permutations(range(num_pages)))[: data.draw(st.integers(0, 6))]
        moves = [(page, *slots[8 * rank + at]) for at, page in enumerate(pages)]
        for _ in range(data.draw(st.integers(0, 2))):  # which drop nothing but themselves
            page = data.draw(st.integers(-1, num_pages - 1))
            dropped = (page, -1, 0) if page >= 0 else (-1, 0, 0)
            moves.insert(data.draw(st.integers(0, len(moves))), dropped)
        caches.append(torch.randn(3, num_pages, 2, 2, 1, 4).bfloat16())
        tables.append(torch.tensor(moves, dtype=torch.int64).reshape(-1, 3))
    done = shuffle.dispatch(
        [[each] for each in caches], [named(each[:, 0], each[:, 1:]) for each in tables]
    )
    work = [each.rows["x"].mul(2) for each in done]
    results = shuffle.combine(work, [each.handle for each in done], [{}] * 4)
    for cache, table, result in zip(caches, tables, results, strict=True):
        moved = table[(table >= 0).all(1), 0]
        wanted = torch.zeros_like(cache)
        wanted[:, moved] = cache[:, moved] * 2
        assert torch.equal(result["x"], wanted)


def test_a_page_that_two_moves_want_back(shuffles: dict[str, LockstepShuffle]) -> None:
    cache = torch.zeros(3, 5, 2, 2, 1, 4, dtype=torch.bfloat16)
    source = torch.tensor([4, 3, 0, 3, 4])
    to = torch.tensor([[0, 0], [-1, 1], [0, 2], [1, 3], [1, 4]])
    nothing = named(source[:0], to[:0])
    told = "segments 0 and 4 of rank 2 are the same cells of `cache`, from cell 4 on"
    with pytest.raises(SourceOverlapError, match=told) as caught:
        shuffles["kv_pages"].dispatch([[cache]] * 4, [nothing, nothing, named(source, to), nothing])
    error = caught.value
    assert (error.rank, error.cell, error.first, error.second) == (2, 4, 0, 4)


def test_cells_that_nobody_picks_are_left_alone(shuffles: dict[str, LockstepShuffle]) -> None:
    """Of a row whose pick is -1 no cell is written, the one before it neither."""
    picks = torch.tensor([-1, 2, 0, -1, 1])
    bins = torch.tensor([0, 3, 5, 1, -1])
    table = torch.rand(5, 3, 4)
    given = {"picks": picks, "bins_of": bins}
    none = {name: each[:0] for name, each in given.items()}
    shuffle = shuffles["chosen"]
    done = shuffle.dispatch([[table], *[[table[:0]]] * 3], [given, *[none] * 3])
    rows = [each.rows["x"].clone() for each in done]
    [result, *_] = shuffle.combine(rows, [each.handle for each in done], [{}] * 4)
    wanted = torch.zeros_like(table)
    wanted[1, 2], wanted[2, 0] = table[1, 2], table[2, 0]
    assert torch.equal(result["x"], wanted)


@pytest.mark.parametrize("page", [2, -2, 2**40])
def test_a_page_that_does_not_exist(shuffles: dict[str, LockstepShuffle], page: int) -> None:
    cache = torch.zeros(3, 2, 2, 2, 1, 4, dtype=torch.bfloat16)
    source, to = torch.tensor([0, page]), torch.tensor([[0, 0], [0, 1]])
    nothing = named(source[:0], to[:0])
    with pytest.raises(IndexOutOfRangeError) as caught:
        shuffles["kv_pages"].dispatch([[cache]] * 4, [nothing, named(source, to), nothing, nothing])
    error = caught.value
    assert (error.input, error.rank, error.position) == ("source_page", 1, (1,))
    assert (error.value, error.lowest, error.highest) == (page, -1, 1)


def test_tokens_follow_their_document(shuffles: dict[str, LockstepShuffle]) -> None:
    document_idx = torch.tensor([2, 0, -1, 1, 2, 2], dtype=torch.int32)
    bin_idx = torch.tensor([5, -1, 4])
    ids = torch.arange(6)
    empty = {"document_idx": document_idx[:0], "bin_idx": bin_idx[:0]}
    given = {"document_idx": document_idx, "bin_idx": bin_idx}
    dispatched = shuffles["documents"].dispatch([[ids], *[[ids[:0]]] * 3], [given, *[empty] * 3])
    assert dispatched[0].rows["id"].tolist() == [0, 4, 5]  # bin 4
    assert dispatched[1].rows["id"].tolist() == [1]  # bin 5
    assert [len(each.rows["id"]) for each in dispatched[2:]] == [0, 0]


def test_a_document_that_does_not_exist(shuffles: dict[str, LockstepShuffle]) -> None:
    """Nothing is read where there are no documents at all."""
    ids = torch.arange(2)
    given = {"document_idx": torch.tensor([-1, 0], dtype=torch.int32), "bin_idx": ids[:0]}
    with pytest.raises(IndexOutOfRangeError, match=r"document_idx\[1\]` on rank 0 is 0"):
        shuffles["documents"].dispatch([[ids]] * 4, [given] * 4)


def test_divisions_floor_however_many_there_are(shuffles: dict[str, LockstepShuffle]) -> None:
    ids = torch.arange(-40_000, 40_000, 777)
    none = {"ids": ids[:0]}
    dispatched = shuffles["halved"].dispatch([[ids], *[[ids[:0]]] * 3], [{"ids": ids}, *[none] * 3])
    bins = (ids - 1).div(2**12, rounding_mode="floor").remainder(6)
    for rank, each in enumerate(dispatched):
        wanted = torch.cat([ids[bins == key] for key in range(rank, 6, 4)])
        assert torch.equal(each.rows["id"], wanted)
