"""What points look up by values of inputs, and compute from them, against plain torch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import fuscoc
from fuscoc_runtime.errors import IndexOutOfRangeError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.topology import Topology

EXAMPLE = Path(__file__).parents[2] / "examples" / "kv_pages.fsc"
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
def shuffles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LockstepShuffle]:
    path = tmp_path_factory.mktemp("places")
    sizes = {"layers": 3, "page": 2, "heads": 1, "width": 4}
    built = [
        fuscoc.compile(EXAMPLE, path / "pages", **sizes),
        fuscoc.compile(DOCUMENTS, path / "documents"),
        fuscoc.compile(HALVED, path / "halved"),
    ]
    topology = Topology.parse("2x2")
    opened = [LockstepShuffle(load_artifact(each), topology=topology) for each in built]
    return {each.spec.name: each for each in opened}


def named(source: Tensor, to: Tensor, slots: int = 8) -> dict[str, object]:
    return {"source_page": source, "destination": to, "slots": slots}


def test_pages_are_gathered_where_an_input_says(shuffles: dict[str, LockstepShuffle]) -> None:
    """Also the same page twice, and none where it is -1."""
    random = torch.Generator().manual_seed(0)
    num_pages = (5, 2, 0, 3)
    caches = [torch.randn(3, n, 2, 2, 1, 4, generator=random).bfloat16() for n in num_pages]
    moves = [[(4, 1, 0), (0, 3, 7), (4, 2, 1)], [(-1, 0, 0), (1, 0, 3)], [(-1, -1, 9)], []]
    tables = [torch.tensor(each, dtype=torch.int64).reshape(-1, 3) for each in moves]
    shuffle = shuffles["kv_pages"]
    dispatched = shuffle.dispatch(
        [[each] for each in caches], [named(each[:, 0], each[:, 1:]) for each in tables]
    )
    for source, mine in enumerate(moves):
        for page, rank, slot in mine:
            if page >= 0:
                wanted = caches[source][:, page]
                assert torch.equal(dispatched[rank].rows["x"][slot], wanted)


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
