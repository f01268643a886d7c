"""Experts in copies that a table names, against the same experts in one place in torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuscoc.lang.check import check as check_text
from fuscoc.pipeline import compile_to_ir
from fuscoc.planning.points import points_of
from fuscoc.source import SourceFile
from fuscoc.testing.spec import describe
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.errors import IndexOutOfRangeError
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology
from tests.static import specs

RANKS, EXPERTS, SLOTS, COPIES, TOPK, HIDDEN = 4, 6, 8, 3, 2, 4
SIZES = {"hidden": HIDDEN, "experts": EXPERTS, "slots": SLOTS, "reps": COPIES, "topk": TOPK}


def table(order: list[int]) -> tuple[Tensor, Tensor]:
    """Which logical expert every physical one is, each at least once, and the copies of each, int64
    [EXPERTS, COPIES], repeated where there are fewer; ``order`` is a permutation of all slots."""
    logical = torch.tensor([slot % EXPERTS for slot in order])
    replicas = torch.empty(EXPERTS, COPIES, dtype=torch.int64)
    for expert in range(EXPERTS):
        of_expert = torch.nonzero(logical == expert).flatten().tolist()
        replicas[expert] = torch.tensor([of_expert[c % len(of_expert)] for c in range(COPIES)])
    return logical, replicas


orders = st.permutations(range(SLOTS))


@pytest.mark.parametrize("topology", ["1x4", "2x2"])
def test_tables_change_between_calls(topology: str) -> None:
    check(topology, [list(range(SLOTS)), [7, 3, 0, 2, 6, 1, 5, 4]], seed=0)


@pytest.mark.nightly
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("topology", ["1x4", "2x2"])
@given(st.lists(orders, min_size=2, max_size=3), st.integers(0, 99))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_tables_at_night(topology: str, tables: list[list[int]], seed: int) -> None:
    check(topology, tables, seed)


def check(topology: str, tables: list[list[int]], seed: int) -> None:
    """The layer's result is that of the logical experts, and a copy gets the tokens that are its;
    no table is compiled, and none loses the kernels of fixed capacity."""
    artifact = specs.artifact("moe_replicated.fsc", **SIZES)
    spec = artifact.shuffle("moe_replicated")
    assert spec.cuda is not None
    assert spec.node is not None
    shuffle = LockstepShuffle(artifact, topology=Topology.parse(topology))
    random = torch.Generator().manual_seed(seed)
    sizes = [2, 0, 1, 3]
    for order in tables:
        logical, replicas = table(order)
        x = [torch.randint(-8, 8, (size, HIDDEN), generator=random).bfloat16() for size in sizes]
        idx = [torch.rand(size, EXPERTS, generator=random).topk(TOPK).indices for size in sizes]
        weights = [torch.rand(size, TOPK, generator=random) for size in sizes]
        factor = torch.arange(1.0, EXPERTS + 1)  # what an expert multiplies by
        done = shuffle.dispatch(
            [[each] for each in x],
            [{"topk_idx": each, "replicas": replicas} for each in idx],
        )
        outputs = []
        for rank, each in enumerate(done):
            rows = each.rows["x"].clone()
            for slot, begin, count in spans(each.handle, rank):
                here = slice(begin, begin + count)
                wanted = [
                    x[source][t]
                    for source in range(RANKS)
                    for t in range(sizes[source])
                    for k in range(TOPK)
                    if replicas[idx[source][t, k], (t + source) % COPIES] == slot
                ]
                assert count == len(wanted)
                assert all(map(torch.equal, rows[here], wanted))
                rows[here] *= factor[logical[slot]]
            outputs.append(rows)
        back = shuffle.combine(
            outputs, [each.handle for each in done], [{"topk_weights": each} for each in weights]
        )
        for result, here, chosen, weight in zip(back, x, idx, weights, strict=True):
            sums = here.double() * (weight * factor[chosen]).sum(1, keepdim=True)
            torch.testing.assert_close(result["x"].double(), sums, rtol=0.02, atol=1e-6)


def spans(handle: Handle, rank: int) -> list[tuple[int, int, int]]:
    """(physical expert, first row, rows) of those on a rank, in order."""
    each = SLOTS // RANKS
    offsets, counts = handle.key_offsets.tolist(), handle.key_counts.tolist()
    return [(rank * each + n, offsets[n], counts[n]) for n in range(each)]


@given(orders, st.integers(0, 99))
@settings(max_examples=10)
def test_which_copy(order: list[int], seed: int) -> None:
    """Every rank and token has its copy: the table's, by turns."""
    text = (specs.EXAMPLES / "moe_replicated.fsc").read_text(encoding="utf-8")
    (checked,) = check_text(SourceFile("moe_replicated.fsc", text), SIZES)
    module = compile_to_ir(checked, after="coalesce-segments").module
    _, replicas = table(order)
    random = torch.Generator().manual_seed(seed)
    chosen = [torch.randint(-1, EXPERTS, (9, TOPK), generator=random) for _ in range(RANKS)]
    data = [RankData({}, {"topk_idx": idx, "replicas": replicas}, {"tokens": 9}) for idx in chosen]
    found = points_of(module, describe(checked), Topology(1, RANKS), data)
    for rank, (each, idx) in enumerate(zip(found, chosen, strict=True)):
        turn = (torch.arange(9).unsqueeze(1) + rank) % COPIES
        wanted = torch.where(idx >= 0, replicas[idx.clamp(min=0), turn], -1).flatten()
        assert each.columns["key"].tolist() == wanted.tolist()
        assert each.columns["rank"].tolist() == torch.where(wanted >= 0, wanted // 2, -1).tolist()


def test_a_table_names_slots_that_exist() -> None:
    shuffle = LockstepShuffle(
        specs.artifact("moe_replicated.fsc", **SIZES), topology=Topology.parse("1x4")
    )
    replicas = torch.full((EXPERTS, COPIES), SLOTS)
    idx, x = torch.zeros(1, TOPK, dtype=torch.int64), torch.zeros(1, HIDDEN).bfloat16()
    with pytest.raises(IndexOutOfRangeError):
        shuffle.dispatch([[x]] * RANKS, [{"topk_idx": idx, "replicas": replicas}] * RANKS)
