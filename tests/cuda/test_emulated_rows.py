"""Small rows of packed targets, thread by thread on the host: the checks of node_run.py."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from benchmarks.moe_cases import Model, program
from fuscoc_runtime.kernels import cuda
from tests.cuda import edges, node_run, short_run
from tests.cuda.emulation.ranks import emulated_ranks

HOST = torch.device("cpu")
LINES = Model(hidden=256, experts=8, topk=1, align=1)
SHORT = Model(hidden=4, experts=13, topk=1, dtype="f32", placement="cyclic", align=1)
MANY = Model(hidden=72, experts=140, topk=1, placement="cyclic", align=1)
LONG = Model(hidden=1024, experts=13, topk=1, dtype="f32", placement="cyclic", align=1)
FIELDS = Model(
    hidden=72, experts=60, topk=1, extra=(("scales", "f32", 4),), placement="expert_to_rank"
)


@pytest.mark.parametrize(
    ("model", "num_ranks"),
    [
        (SHORT, 2),
        (FIELDS, 3),
        (MANY, 2),
        (LONG, 2),
        pytest.param(LINES, 1, marks=pytest.mark.nightly),
        pytest.param(LINES, 4, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_calls(model: Model, num_ranks: int) -> None:
    """Many and few rows of any destinations, of ranks that have none, too."""
    printed = program(model)
    assert printed.scatters or printed.sorts

    def calls() -> list[str]:
        failed = node_run.model_cases(model, printed, edges.UNSTAGED, 160, HOST)
        return ["a call"] if failed else []

    with emulated_ranks(num_ranks) as world:
        assert world.run(calls) == []


@pytest.mark.parametrize(
    ("number", "most", "num_ranks"),
    [
        (3, 9000, 2),
        (4, edges.TOKENS, 2),
        (5, 5000, 2),
        *(
            pytest.param(number, most, num_ranks, marks=pytest.mark.nightly)
            for number in range(len(edges.COPIED))
            for most, num_ranks in ((edges.UNSTAGED, 1), (2 * edges.UNSTAGED, 4))
        ),
    ],
)
def test_copies(number: int, most: int, num_ranks: int) -> None:
    """Rows come back as they are: of all sizes and several fields, to ranks that have none, too."""
    with emulated_ranks(num_ranks) as world:
        model = edges.COPIED[number]
        assert world.run(lambda: edges.copy_problems(model, most, HOST)) == []


@pytest.mark.parametrize(
    ("number", "num_ranks", "arch"),
    [
        (2, 3, 80),
        (3, 2, 90),
        (4, 2, 90),
        (5, 2, 90),
        *(
            pytest.param(number, num_ranks, 90, marks=pytest.mark.nightly)
            for number in range(len(edges.SORTED))
            for num_ranks in (1, 4)
        ),
    ],
)
def test_full(number: int, num_ranks: int, arch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sorted rows of any size and several fields, half of which do not fit, on any GPU."""
    monkeypatch.setenv(cuda.ARCH_VARIABLE, f"sm_{arch}")
    assert edges.taking_back(edges.SORTED[number], "copy").sorts
    with emulated_ranks(num_ranks, arch) as world:
        assert world.run(lambda: edges.full_problems(edges.SORTED[number], HOST, 1100)) == []


@pytest.mark.parametrize(
    ("number", "most", "num_ranks"),
    [
        (0, edges.TOKENS, 3),
        (1, edges.UNSTAGED, 2),
        (2, edges.TOKENS, 3),
        (3, edges.TOKENS, 2),
        *(
            pytest.param(number, most, num_ranks, marks=pytest.mark.nightly)
            for number in range(len(edges.TABLES))
            for most, num_ranks in ((edges.UNSTAGED, 3), (edges.TOKENS, 4))
        ),
    ],
)
def test_tables(number: int, most: int, num_ranks: int) -> None:
    """That differ between ranks, by all kernels that plan."""
    with emulated_ranks(num_ranks) as world:
        model = edges.TABLES[number]
        assert world.run(lambda: edges.table_problems(model, most, HOST, 40)) == []


@pytest.mark.parametrize(
    ("edge", "num_ranks"),
    [
        pytest.param(edges.guards, 3, marks=pytest.mark.nightly),
        pytest.param(edges.refusals, 2, marks=pytest.mark.nightly),
    ],
    ids=lambda value: str(getattr(value, "__name__", value)),
)
def test_edges(edge: Callable[[torch.device], bool], num_ranks: int) -> None:
    with emulated_ranks(num_ranks) as world:
        assert world.run(lambda: [edge.__name__] * edge(HOST)) == []


@pytest.mark.nightly
@pytest.mark.parametrize(("num_ranks", "arch"), [(2, 90), (3, 80)])
def test_short_rows_in_any_order(
    num_ranks: int, arch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calls of sorted rows of any kind, one after the other, verified as on GPUs."""
    monkeypatch.setenv(cuda.ARCH_VARIABLE, f"sm_{arch}")

    def calls() -> list[str]:
        engines = short_run.shorts(900, HOST, random.Random(5))
        return short_run.stress(engines, 40, 600, HOST)

    with emulated_ranks(num_ranks, arch) as world:
        assert world.run(calls) == []
