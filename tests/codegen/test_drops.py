"""Which points are dropped, and which are errors, where values are looked up by others."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc import testing
from fuscoc.lang.check import check
from fuscoc.pipeline import compile_to_ir
from fuscoc.planning.points import points_of
from fuscoc.source import SourceFile
from fuscoc.testing.spec import describe
from fuscoc_runtime import reference
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.codegen.memory import int64s, zeros
from tests.codegen.specs import built_from

SPEC = """
shuffle s {
  index m : moves  index b : pages  index s : slots  index q : requests
  segment row { x : f32 }
  layout cache[b] of row
  layout arrived[s] of row
  route from(m) -> (page, request) = input source : int64[2]
  route home(q) -> rank = input request_rank : int64
  route to(m) -> slot = input slot_idx : int64
  view leaving[m] = cache[from(m).page]
  dispatch leaving[m] -> arrived[to(m) * 0 + m] on home(from(m).request)
}
"""
(CHECKED,) = check(SourceFile("s.fsc", SPEC))
SHUFFLE, MODULE = describe(CHECKED), compile_to_ir(CHECKED, after="coalesce-segments").module
KERNELS = built_from(CHECKED, compile_to_ir(CHECKED).module).kernels
NUM_RANKS = 2
NUMBERS = st.integers(-2, 3)


@settings(max_examples=60)
@given(
    moves=st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS), max_size=6),
    homes=st.lists(NUMBERS, max_size=3),
    num_pages=st.integers(0, 3),
)
def test_places(moves: list[tuple[int, int, int]], homes: list[int], num_pages: int) -> None:
    """A -1 that is read drops the point, unless it is read at a place that does not exist."""
    num_moves = len(moves)

    def rank(page: int, request: int, slot: int) -> int:
        owner = homes[request] if 0 <= request < len(homes) else -2
        if -1 in (page, request, slot, owner):
            return -1
        return owner if 0 <= page < num_pages and 0 <= owner < NUM_RANKS else -2

    ranks = [rank(*move) for move in moves]
    cells = [page if 0 <= page < num_pages else 0 for page, *_ in moves]
    wanted = {"rank": ranks, "slot": list(range(num_moves)), "src_offset": cells}

    pairs, slots = int64s([move[:2] for move in moves]), int64s([move[2] for move in moves])
    if moves:
        found = {name: zeros(num_moves) for name in ("source", *wanted)}
        KERNELS.launch(
            "s_relation",
            num_points=num_moves,
            num_ranks=NUM_RANKS,
            pages=num_pages,
            requests=len(homes),
            source_=pairs,
            request_rank=int64s(homes or [-1]),
            slot_idx=slots,
            **found,
        )
        assert {name: found[name].tolist() for name in wanted} == wanted

    inputs = {"source": pairs.reshape(-1, 2), "request_rank": int64s(homes), "slot_idx": slots}
    tensors = {name: torch.from_numpy(each) for name, each in inputs.items()}
    extents = {"moves": num_moves, "pages": num_pages, "slots": 9, "requests": len(homes)}
    data = [RankData({}, tensors, extents)] * NUM_RANKS
    topology = Topology(1, NUM_RANKS)
    for points in points_of(MODULE, SHUFFLE, topology, data):
        assert {name: points.columns[name].tolist() for name in wanted} == wanted
    if homes and num_pages:  # numpy looks something up also where nothing is
        for points in testing.points_of(SHUFFLE, topology, data):
            assert {name: points.columns[name].tolist() for name in wanted} == wanted
    if -2 not in ranks:  # the reference knows no errors
        deliveries, _ = reference.route(SHUFFLE, data)
        live = [(each.origin.point, each.rank) for each in deliveries if each.origin.rank == 0]
        assert live == [(point, to) for point, to in enumerate(ranks) if to >= 0]
