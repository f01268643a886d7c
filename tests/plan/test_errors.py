"""Whatever one rank finds wrong with the routing, every rank raises, with the same words."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fuscoc_runtime import errors
from fuscoc_runtime.comm.lockstep import run_lockstep
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.manifest.program import PackedSlots
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import PlanContext, key_to_rank, plan_all, plan_rank, planner
from fuscoc_runtime.plan.explain import explain_extents
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import BinaryOp
from fuscoc_runtime.topology import Topology
from tests.plan.specs import contexts, declaring, patches, relation, routed, routed_data, tiles

TWO = Topology(2, 1)


def failure_of_every_rank(
    spec: ShuffleSpec, topology: Topology, ranks: list[RankData]
) -> list[FuscoRuntimeError]:
    """What each rank raises; a plan of all in arrays of numpy does, too."""
    points = [relation(spec, topology, rank, data) for rank, data in enumerate(ranks)]
    caught = raised_by_all(lambda: list(map(plan_rank, contexts(spec, topology), points)))
    with pytest.raises(type(caught[0])) as on_host:
        plan_all(spec, topology, points)
    if not isinstance(caught[0], errors.PreparationError):  # numpy's words, or torch's
        assert str(on_host.value) == str(caught[0])
    return caught


def raised_by_all(make: Callable[[], list[Any]]) -> list[FuscoRuntimeError]:
    """Drive the ranks to their errors: each generator's own, not just the first to fail."""
    caught: list[FuscoRuntimeError] = []

    def catching(generator: Any) -> Any:
        try:
            yield from generator
        except FuscoRuntimeError as error:
            caught.append(error)

    generators = make()
    run_lockstep([catching(generator) for generator in generators])
    assert len(caught) == len(generators), "every rank raises"
    assert len({str(error) for error in caught}) == 1, "the same everywhere"
    return caught


def test_index_out_of_range_names_input_rank_position_and_value() -> None:
    ranks = [
        routed_data(torch.tensor([[0, 1], [2, 3]]), 0),
        routed_data(torch.tensor([[0, 1], [2, 300], [4, -7]]), 1),
    ]
    error = failure_of_every_rank(routed(), TWO, ranks)[0]
    assert isinstance(error, errors.IndexOutOfRangeError)
    assert str(error) == ("[FSR010] `idx[1, 1]` on rank 1 is 300; it must be between -1 and 7")


def test_destination_rank_out_of_range() -> None:
    where = torch.zeros(1, 2, 2, 2, dtype=torch.int64)
    where[0, 1, 0] = torch.tensor([2, 0])
    data = tiles_data(where, length=8)
    error = failure_of_every_rank(tiles(), TWO, [tiles_data(where[:0], 8), data])[0]
    assert str(error) == (
        "[FSR010] `where[0, 1, 0, 0]` on rank 1 is 2; it must be between -1 and 1"
    )


def test_position_of_a_ragged_domain() -> None:
    spec = patches(p=1)
    data = patches_data([(1, 2), (2, 1)], [[0, 0], [7, 0]], length=4)
    error = failure_of_every_rank(spec, Topology(1, 1), [data])[0]
    assert str(error) == "[FSR010] `packing[1, 0]` on rank 0 is 7; it must be between -1 and 0"


def test_overlapping_slots_name_both_sources() -> None:
    spec = patches(p=1)
    ranks = [
        patches_data([(1, 2)], [[1, 3]], length=9),
        patches_data([(1, 1), (2, 1)], [[-1, 0], [1, 4]], length=9),
    ]
    error = failure_of_every_rank(spec, TWO, ranks)[0]
    assert isinstance(error, errors.SlotOverlapError)
    assert str(error) == (
        "[FSR012] slot 4 on rank 1 is written twice: by segment 1 of rank 0 and by segment 1 of "
        "rank 1"
    )


@pytest.mark.parametrize(
    ("slot", "hint"), [(-1, "; what drops a segment is a rank of -1"), (-2, ""), (4, "")]
)
def test_slot_out_of_range(slot: int, hint: str) -> None:
    spec = patches(p=1)
    ranks = [
        patches_data([], [], length=4),
        patches_data([(1, 1)], [[0, slot]], length=99),
    ]
    error = failure_of_every_rank(spec, TWO, ranks)[0]
    assert isinstance(error, errors.SlotOutOfRangeError)
    assert str(error) == (
        f"[FSR013] segment 0 of rank 1 goes to slot {slot} of rank 0, which has 4 slots{hint}"
    )


def test_a_target_that_no_memory_holds() -> None:
    ranks = [patches_data([(1, 1)], [[0, 0]], length=4), patches_data([], [], length=2**50)]
    error = failure_of_every_rank(patches(p=1), TWO, ranks)[0]
    assert isinstance(error, errors.PreparationError)
    assert error.rank == 1


def test_capacity_counts_padding() -> None:
    spec = routed(num_keys=4, align=4, capacity=7)
    ranks = [routed_data(torch.tensor([[2, 3]]), rank) for rank in range(2)]
    error = failure_of_every_rank(spec, TWO, ranks)[0]
    assert str(error) == "[FSR014] rank 1 needs 8 slots; the capacity is 7"
    fits = routed(num_keys=4, align=4, capacity=8)
    plans = run_lockstep(
        [
            plan_rank(ctx, relation(fits, TWO, ctx.rank, data))
            for ctx, data in zip(contexts(fits, TWO), ranks, strict=True)
        ]
    )
    assert plans[1].rows.target == 8


@pytest.mark.parametrize("align", [2**62, 2**63 - 1])
def test_padding_beyond_all_integers(align: int) -> None:
    """Three keys of ``align`` slots each are more than 64 bits can count."""
    ranks = [routed_data(torch.tensor([[0, 1], [2, -1]]), rank) for rank in range(2)]
    spec = routed()
    wide = replace(slots(spec), align=align, most_padding=align - 1)
    program = replace(spec.program, target=wide)
    error = failure_of_every_rank(replace(spec, program=program), TWO, ranks)[0]
    assert isinstance(error, errors.CapacityError)
    assert (error.rank, error.num_slots) == (0, 3 * align)


def test_anything_else_that_fails_a_rank_is_raised_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(ctx: PlanContext, *_: Any) -> None:
        if ctx.rank == 1:
            raise MemoryError("1 TB")

    monkeypatch.setattr(planner, "check_policy", fail)
    ranks = [routed_data(torch.tensor([[0, 1]]), rank) for rank in range(2)]
    raised = failure_of_every_rank(routed(), TWO, ranks)
    assert str(raised[0]) == "[FSR006] rank 1 could not prepare the call: MemoryError: 1 TB"
    assert isinstance(raised[1].__cause__, MemoryError)


def test_ranks_with_different_tables() -> None:
    spec = routed(num_keys=2, placement="table")
    tables = [torch.tensor([0, 1]), torch.tensor([1, 0])]
    ranks = [
        routed_data(torch.tensor([[0, 1]]), rank, more={"owner": table})
        for rank, table in enumerate(tables)
    ]
    error = failure_of_every_rank(spec, TWO, ranks)[0]
    assert isinstance(error, errors.PlacementMismatchError)
    assert "`owner` on rank 1" in str(error)


def test_a_rank_that_failed_before_planning() -> None:
    spec = routed()
    own = errors.InputError("x", 1, "is torch.float32 [3]; it must be torch.bfloat16 [3]" * 30)
    good = relation(spec, TWO, 0, routed_data(torch.tensor([[0, 1]]), 0))

    def make() -> list[Any]:
        first, second = contexts(spec, TWO)
        return [plan_rank(first, good), plan_rank(second, own)]

    raised = raised_by_all(make)
    assert {str(error) for error in raised} == {str(own)}
    assert all(isinstance(error, errors.InputError) for error in raised)


def test_the_lowest_failing_rank_is_reported() -> None:
    ranks = [routed_data(torch.tensor([[0, 9 + rank]]), rank) for rank in range(2)]
    error = failure_of_every_rank(routed(), TWO, ranks)[0]
    assert "on rank 0 is 9" in str(error)


def test_block_placement_needs_a_dividing_number_of_ranks() -> None:
    with pytest.raises(errors.TopologyError, match=r"there are 8 keys, which 3 ranks \(3x1\)"):
        key_to_rank(slots(routed()), Topology(3, 1), 0, {})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (None, "`owner` on rank 1 is missing"),
        (torch.tensor([0, 1]), "must be torch.int64 [3]"),
        (torch.tensor([0, 1, 1], dtype=torch.int32), "is torch.int32 [3]"),
        (torch.tensor([0, 1, 2]), "`owner[2]` on rank 1 is 2; it must be between 0 and 1"),
        (torch.tensor([0, -1, 1]), "`owner[1]` on rank 1 is -1"),
    ],
)
def test_bad_placement_table(table: torch.Tensor | None, message: str) -> None:
    target = slots(routed(num_keys=3, placement="table"))
    with pytest.raises(FuscoRuntimeError) as caught:
        key_to_rank(target, TWO, 1, {} if table is None else {"owner": table})
    assert message in str(caught.value)


def test_inexact_division_names_index_and_value() -> None:
    inputs = {"height": torch.tensor([28, 28]), "width": torch.tensor([14, 30])}
    error = explain_extents(patches(p=14), 3, inputs, {"images": 2, "length": 9}, 1)
    assert str(error) == ("[FSR011] `width[n]` is 30 at n = 1 on rank 3, which 14 does not divide")


def test_computed_size_below_zero() -> None:
    spec = patches(p=1)
    outer, inner, *rest = spec.declared.domain
    shrunk = replace(inner, extent=BinaryOp("-", inner.extent, 3))
    spec = declaring(spec, domain=(outer, shrunk, *rest))
    inputs = {"height": torch.tensor([3, 2]), "width": torch.tensor([1, 1])}
    error = explain_extents(spec, 1, inputs, {"images": 2, "length": 9}, 1)
    assert isinstance(error, errors.InputError)
    assert str(error).endswith("- 3` on rank 1 is -1 at n = 1: no size")


def test_computed_key_is_explained_as_an_expression() -> None:
    """A key that is no plain load is shown as its expression at the domain point."""
    spec = hashed(modulus=9)
    error = failure_of_every_rank(spec, TWO, [hashed_data(0, 5), hashed_data(1, 8)])[0]
    assert str(error) == ("[FSR010] `idx[0, 0] % 9` on rank 1 is 8; it must be between -1 and 7")


def hashed(modulus: int) -> ShuffleSpec:
    spec = routed(topk=1)
    target = spec.declared.target
    assert target.kind == "packed"
    return declaring(spec, target=replace(target, key=BinaryOp("%", target.key, modulus)))


def hashed_data(rank: int, value: int) -> RankData:
    return routed_data(torch.tensor([[value]]), rank)


EXAMPLES = [
    errors.ArtifactError("a/b", "is missing"),
    errors.TopologyError("3 ranks"),
    errors.InputError("x", 1, "is wrong"),
    errors.NativeBuildError(1, "no C compiler"),
    errors.PreparationError(1, "MemoryError: 1 TB"),
    errors.OptionError("tokens", "is -3"),
    errors.IndexOutOfRangeError("idx", 1, (2, 3), 9, -1, 7),
    errors.InexactDivisionError(0, "n", 4, "height[n]", 15, 14),
    errors.InexactDivisionError(2, None, None, "16", 16, 3),
    errors.DivisorError(3, "2 / ranks", 0),
    errors.SlotOverlapError(1, 2, (0, 3), (1, 4)),
    errors.SlotOutOfRangeError(1, 9, 8, (0, 3)),
    errors.CapacityError(1, 9, 8),
    errors.PlacementMismatchError("owner", 1),
    errors.TablesDifferError("owner", 1, 2),
    errors.ExtentMismatchError("tokens", 2, (8, 9)),
    errors.KeyRangeError(1, "idx[t, k]", 2, 7),
    errors.NoSlotError(1, 2, 64),
    errors.DestinationError(1, "to[t, 0]", "to[t, 1]", 2),
    errors.SlotClashError(1, "to[t, 1]", 2),
    errors.SourceOverlapError(1, "cache", 4, 0, 3),
    errors.SourceClashError(1, "cache", 2),
    errors.ExcessError(1, 2, 64),
    errors.SizesError(1, "pictures", 2),
    errors.PlaceRangeError(1, "cache", "block(s)", 2),
    errors.PlaceOverlapError(1, "cache", "block(s)", 2),
    errors.BackendError("moe", "there is no GPU"),
    errors.HopTimeoutError(0, "network", 3, 2.5),
    errors.NetworkError(0, "AllGather", "connection reset"),
    errors.RefusedCallError(0, 3, 1),
    errors.OutdatedError(0, "rows", 1),
    errors.ClosedError("moe"),
    errors.AdapterError("vLLM 0.11", "its prepare takes other arguments"),
    errors.ProtocolError("out of step"),
]


def test_every_error_has_an_example_and_its_own_code() -> None:
    assert {type(error) for error in EXAMPLES} == set(errors.ERRORS.values())
    assert len(errors.ERRORS) == len(FuscoRuntimeError.__subclasses__())


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: error.code)
@pytest.mark.parametrize(
    "travel",
    [
        lambda error: errors.from_json(errors.to_json(error)),
        lambda error: pickle.loads(pickle.dumps(error)),
    ],
    ids=["json", "pickle"],
)
def test_errors_survive_the_wire(
    error: FuscoRuntimeError, travel: Callable[[FuscoRuntimeError], FuscoRuntimeError]
) -> None:
    arrived = travel(error)
    assert type(arrived) is type(error)
    assert vars(arrived) == vars(error)
    assert str(arrived) == str(error) == f"[{error.code}] {error.message}"


def slots(spec: ShuffleSpec) -> PackedSlots:
    assert spec.program.target.kind == "packed"
    return spec.program.target


def patches_data(sizes: list[tuple[int, int]], packing: list[list[int]], length: int) -> RankData:
    cells = sum(height * width for height, width in sizes)
    inputs = {
        "height": torch.tensor([height for height, _ in sizes], dtype=torch.int64),
        "width": torch.tensor([width for _, width in sizes], dtype=torch.int64),
        "packing": torch.tensor(packing, dtype=torch.int64).view(len(sizes), 2),
    }
    pixels = torch.zeros(cells, 3, dtype=torch.uint8)
    return RankData({"pixels": pixels}, inputs, {"images": len(sizes), "length": length})


def tiles_data(where: torch.Tensor, length: int) -> RankData:
    rows = len(where)
    for slot, place in enumerate(where.view(-1, 2)):
        place[1] = slot
    source = {"a": torch.zeros(2 * rows, 4, 3), "b": torch.zeros(2 * rows, 4, dtype=torch.float16)}
    return RankData(source, {"where": where}, {"tile_rows": rows, "length": length})
