"""The CUDA kernels for given slots and segments with places, thread by thread on the host, against
the reference.

That takes a minute and no GPU; dense_run.py makes the same checks on real ones.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fuscoc.explain import fixed
from fuscoc_runtime.engine.node import pieces
from fuscoc_runtime.engine.node.pieces import PiecesNode
from fuscoc_runtime.engine.node.schedule import Schedule
from fuscoc_runtime.engine.node.state import Trouble
from fuscoc_runtime.topology import Topology
from tests.cuda import dense_mistakes, dense_run
from tests.cuda.dense_node import ranks_of
from tests.cuda.emulation import ranks as emulation
from tests.cuda.emulation.ranks import emulated_ranks
from tests.engine.lent_memory import Results

HOST = torch.device("cpu")
NUM_COMBINES, LENT = 1, 48  # words of a state

Compiled = Callable[..., Path]


def all_calls(run: dense_run.Run) -> list[str]:
    """What is wrong with one of every batch."""
    return [each for batch in run.batches for each in run.call(batch)]


@pytest.mark.parametrize(
    ("case", "num_ranks", "arch"),
    [
        ("ulysses", 2, 90),
        pytest.param("ulysses_in_parts", 1, 90, marks=pytest.mark.nightly),
        ("fft_transpose", 4, 90),
        ("fft_short_lines", 2, 90),
        pytest.param("redistribute", 3, 90, marks=pytest.mark.nightly),
        ("redistribute_long_rows", 3, 90),
        pytest.param("redistribute_odd_rows", 2, 90, marks=pytest.mark.nightly),
        pytest.param("fft_odd_lines", 2, 90, marks=pytest.mark.nightly),
        ("vit_patches", 1, 90),
        ("vit_patches", 3, 90),
        ("vit_odd_patches", 2, 80),
        ("vit_patches_nchw", 2, 90),
        ("vit_patches_normalised", 3, 90),
        ("vit_unpack", 2, 80),
        pytest.param("vit_unpack_wide", 2, 90, marks=pytest.mark.nightly),
        ("entries", 3, 90),
        ("all_gather", 3, 90),
        ("halo", 3, 80),
        ("all_gather_wide", 2, 90),
        ("halo_wide", 3, 90),
        pytest.param("halo_long", 2, 90, marks=pytest.mark.nightly),
        ("kv_pages", 2, 90),
        ("kv_long_pages", 2, 90),
        pytest.param("kv_odd_pages", 3, 90, marks=pytest.mark.nightly),
        pytest.param("kv_short_runs", 2, 90, marks=pytest.mark.nightly),
        ("kv_short_runs", 2, 80),
        ("boxes", 3, 90),
        ("sums", 2, 90),
        ("casts", 2, 80),
        pytest.param("transposed_i16", 2, 90, marks=pytest.mark.nightly),
        pytest.param("transposed_f64", 3, 80, marks=pytest.mark.nightly),
        ("transposed_u8", 3, 90),
        ("turned", 2, 90),
        ("uneven", 3, 90),
        ("last_takes_rest", 3, 90),
        pytest.param("last_takes_rest", 1, 80, marks=pytest.mark.nightly),
        pytest.param("first_takes_rest", 2, 90, marks=pytest.mark.nightly),
        pytest.param("my_blocks", 3, 80, marks=pytest.mark.nightly),
        ("blocks", 2, 90),
        pytest.param("few_blocks", 3, 90, marks=pytest.mark.nightly),  # a rank has none
        ("reshard", 2, 80),
        ("parts_of_lines", 2, 90),
        ("packed_texts", 2, 90),
        ("packed_tiles", 2, 90),
        ("packed_patches", 3, 80),
        ("packed_turned", 2, 90),
        ("packed_doubles", 2, 80),
        ("packed_casts", 2, 90),
        ("packed_computed", 2, 80),
        ("packed_fields", 2, 90),
    ],
)
def test_calls(
    case: str, num_ranks: int, arch: int, dense: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several in a row, and then one that a rank refuses."""
    monkeypatch.setenv("FUSCOC_CUDA_ARCH", f"sm_{arch}")
    folder = dense(case)

    def calls() -> list[str]:
        run = dense_run.Run(folder, case, HOST, range(2))
        return all_calls(run) + run.refusal()

    with emulated_ranks(num_ranks, arch) as world:
        assert world.run(calls) == []


def waits_though_it_refuses(run: dense_run.Run, world: emulation.World) -> list[str]:
    """A rank that refuses a combine says where it lends its next result only when no CTA of a peer
    can still read what it said of this one."""
    dense, batch = run.dense, run.batches[0]
    handle, waits = dense.dispatch(batch), True
    if dense.rank == dense.num_ranks - 1:
        dense.node.refuse_combine(handle)
        time.sleep(0.2)
        waits = emulation.is_busy()
    world.barrier()
    if dense.rank < dense.num_ranks - 1:
        dense.combine(batch, handle)
    emulation.synchronize()
    world.barrier()
    return [] if waits else ["a rank that refuses is ahead of its peers"]


@pytest.mark.parametrize(
    ("case", "num_ranks", "arch"),
    [
        ("ulysses", 2, 90),
        ("redistribute_long_rows", 3, 90),
        ("kv_long_pages", 2, 90),
        ("vit_patches", 3, 90),  # parts are cleared first
        pytest.param("fft_transpose", 4, 90, marks=pytest.mark.nightly),
        pytest.param("transposed_u8", 3, 90, marks=pytest.mark.nightly),
        pytest.param("turned", 2, 90, marks=pytest.mark.nightly),
        pytest.param("kv_short_runs", 2, 80, marks=pytest.mark.nightly),
        pytest.param("uneven", 3, 90, marks=pytest.mark.nightly),
    ],
)
def test_lent_results(
    case: str, num_ranks: int, arch: int, dense: Compiled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into which peers store, in the same calls; then some that ranks by turns do not lend, whose
    own they are then."""
    monkeypatch.setenv("FUSCOC_CUDA_ARCH", f"sm_{arch}")
    folder = dense(case)

    def calls() -> list[str]:
        run = dense_run.Run(folder, case, HOST, range(2), lends=True)
        node = run.dense.node
        assert isinstance(node, PiecesNode)
        assert isinstance(node.results, Results)

        def lent() -> int:
            emulation.synchronize()
            return int(node.state[LENT])

        most = run.dense.node.limits.max_sources
        shuffle = run.dense.shuffle
        told = fixed.results(shuffle, Topology(1, num_ranks), most, shuffle.cuda)
        assert told is not None
        assert told.count * told.num_bytes == node.results.num_bytes, "what explain says"
        wrong = all_calls(run)
        if lent() != (all_of := 2 * len(run.batches)):
            wrong.append(f"{lent()} is the latest that was lent, not {all_of}")
        node.results.elsewhere = num_ranks + 1
        wrong += all_calls(run)
        latest, staged = lent(), int(node.state[NUM_COMBINES]) - 2 * all_of  # which count twice
        if not (latest > all_of and 0 < staged < all_of):
            wrong.append(
                f"{staged} of {all_of} are staged, and {latest} is the latest that was lent"
            )
        node.results.elsewhere = 0
        wrong += run.refusal(of_combine=True) + run.refusal() + waits_though_it_refuses(run, world)
        # What is told of troubles is that of the refusals.
        wrong += [each for each in all_calls(run) if "Trouble" not in each]
        return wrong + ["none is lent at last"] * (lent() != int(node.state[NUM_COMBINES]))

    with emulated_ranks(num_ranks, arch) as world:
        assert world.run(calls) == []


@pytest.mark.parametrize("case", ["ulysses_in_parts", "redistribute_long_rows"])
def test_few_ctas(case: str, dense: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of whose warps carry while others copy."""
    monkeypatch.setattr(pieces, "SMALL_CALL", 0)
    few, of_few = list[bool](), PiecesNode._of_few

    def noted(node: PiecesNode, kernel: Any, *given: Any) -> Any:
        chosen = of_few(node, kernel, *given)
        if kernel in node._few:
            few.append(chosen is not kernel)
        return chosen

    monkeypatch.setattr(PiecesNode, "_of_few", noted)
    folder = dense(case)

    def calls() -> list[str]:
        run = dense_run.Run(folder, case, HOST, range(2), lends=True)
        assert isinstance(run.dense.node, PiecesNode)
        assert len(run.dense.node._few) == 2, "a dispatch and one that lends"
        return all_calls(run)

    with emulated_ranks(2, 90) as world:
        assert world.run(calls) == []
    assert few
    assert all(few)


def test_a_plan_beside_its_dispatch(dense: Compiled, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some of the SMs, one of which the dispatch leaves it."""
    monkeypatch.setattr(emulation, "NUM_SMS", 4)
    monkeypatch.setattr(pieces, "FEW_CTAS", 1)
    launched, launch = set[tuple[int, bool]](), emulation.Kernel.launch

    def noted(kernel: emulation.Kernel, num_ctas: int, *given: Any) -> None:
        *_, early = given
        launched.add((num_ctas, early))
        launch(kernel, num_ctas, *given)

    monkeypatch.setattr(emulation.Kernel, "launch", noted)
    folder = dense("ulysses")

    def calls() -> list[str]:
        run = dense_run.Run(folder, "ulysses", HOST, range(2))
        run.dense.node.configure(Schedule(num_sms=2))
        return all_calls(run)

    with emulated_ranks(2) as world:
        assert world.run(calls) == []
    assert launched == {(1, False), (1, True), (2, False)}


@pytest.mark.parametrize(
    ("case", "parts"),
    [
        ("vit_nchw_strips", None),
        ("vit_nchw_strips", 36),
        ("planes_i16", None),
        pytest.param("planes_i16", 3, marks=pytest.mark.nightly),
    ],
)
def test_parts_of_strips(case: str, parts: int | None, dense: Compiled) -> None:
    """Tiles that hold a strip of all planes of a picture, and such that hold lines of it."""
    folder = dense(case)
    constants = {} if parts is None else {"kPartsOfTile": parts, "kFewItemLines": 16}

    def calls() -> list[str]:
        run = dense_run.Run(folder, case, HOST, range(2))
        return all_calls(run)

    with emulated_ranks(2, **constants) as world:
        assert world.run(calls) == []


@pytest.mark.parametrize(
    ("case", "lends"),
    [
        pytest.param(case, lends, marks=marks)
        for case in ("vit_strips", "vit_strips_of_long_runs", "vit_strips_of_short_runs")
        for lends in (True, False)
        for marks in [[] if lends == (case == "vit_strips") else [pytest.mark.nightly]]
    ],
)
def test_strips_of_several_widths(case: str, lends: bool, dense: Compiled) -> None:
    """Tiles of a strip each: a dispatch, and where results are lent, knows what a thread has of
    those of one width, and that others are of another."""
    folder = dense(case)

    def calls() -> list[str]:
        run = dense_run.Run(folder, case, HOST, range(2), lends=lends)
        return all_calls(run)

    with emulated_ranks(2, kPartsOfTile=16, kFewItemLines=16) as world:
        assert world.run(calls) == []


@pytest.mark.parametrize("parts", [100, pytest.param(128, marks=pytest.mark.nightly)])
def test_fields_take_turns_in_a_ring(parts: int, dense: Compiled) -> None:
    """How a tile of one field is dealt out is not taken over behind one of the other field."""
    folder = dense("two_strips")

    def calls() -> list[str]:
        return all_calls(dense_run.Run(folder, "two_strips", HOST, range(3)))

    with emulated_ranks(2, kPartsOfTile=parts, kFewItemLines=16) as world:
        assert world.run(calls) == []


def test_calls_that_find_their_boxes(dense: Compiled) -> None:
    """Handles are used again with the same extents, and their boxes are those of before."""
    folder = dense("ulysses")

    def calls() -> list[str]:
        run = dense_run.Run(folder, "ulysses", HOST, range(1))
        return [wrong for _ in range(3) for wrong in all_calls(run)]

    with emulated_ranks(2) as world:
        assert world.run(calls) == []


@pytest.mark.parametrize("case", ["spread", "spread_rows"])
def test_extents_change(case: str, dense: Compiled) -> None:
    """While boxes, or words, of other extents are kept for the next call of the other handle, and
    of the same one; behind a call that a rank refuses, too."""
    folder = dense(case)

    def calls() -> list[str]:
        run = dense_run.Run(folder, case, HOST, range(1))
        (fewer,) = ranks_of(folder / case, 3, range(1, 2))
        first, other = run.batches[0], run.dense.batch(fewer, 1)
        batches = [first, other, first, other, other, first, first]
        wrong = [each for batch in batches for each in run.call(batch)]
        wrong += run.refusal()
        after = [each for batch in batches[:4] for each in run.call(batch)]
        return wrong + [each for each in after if "Trouble" not in each]  # that of the refusal

    with emulated_ranks(2) as world:
        assert world.run(calls) == []


@pytest.mark.parametrize("case", ["halo", "all_gather"])
def test_words_are_kept(case: str, dense: Compiled) -> None:
    """From call to call of either handle, but for those behind one that a rank refuses."""
    folder = dense(case)

    def calls() -> list[str]:
        run = dense_run.Run(folder, case, HOST, range(2))
        first, other = run.batches
        before = [each for batch in (first, other, other, first) for each in run.call(batch)]
        before += run.refusal()
        told = run.dense.troubles()
        if (told == Trouble()) != (run.dense.rank == 1):
            before.append(f"a refusal has left {told}")
        after = [each for batch in (other, first, first, other) for each in run.call(batch)]
        return before + [each for each in after if each != str(told)]

    with emulated_ranks(2) as world:
        assert world.run(calls) == []


def test_inputs_change(dense: Compiled) -> None:
    """That say where all rows go: of the next call of the same handle, and the one after."""
    folder = dense("shifted")

    def calls() -> list[str]:
        run = dense_run.Run(folder, "shifted", HOST, range(2))
        first, other = run.batches
        return [each for batch in (first, other, other, first) for each in run.call(batch)]

    with emulated_ranks(2) as world:
        assert world.run(calls) == []


@pytest.mark.parametrize(
    ("check", "case"),
    [
        (dense_mistakes.mistakes, "kv_pages"),
        (dense_mistakes.piece_mistakes, "kv_long_pages"),
        (dense_mistakes.shared_pages, "kv_pages"),
        (dense_mistakes.shared_pieces, "kv_long_pages"),
        (dense_mistakes.entry_mistakes, "entries"),
        (dense_mistakes.ragged_mistakes, "vit_patches"),
    ],
)
def test_mistakes(
    check: Callable[[Path, torch.device], list[str]], case: str, dense: Compiled
) -> None:
    folder = dense(case)
    with emulated_ranks(2) as world:
        assert world.run(lambda: check(folder, HOST)) == []


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.nightly)])
def test_tables(num_ranks: int, dense: Compiled) -> None:
    """That differ between ranks, of segments with places and a compact target."""
    folder = dense("packed_turned")
    with emulated_ranks(num_ranks) as world:
        assert world.run(lambda: dense_mistakes.tables(folder, HOST)) == []


def test_any_calls_in_any_order(dense: Compiled) -> None:
    cases = ("kv_pages", "boxes", "fft_transpose")
    folder = dense(*cases)

    def calls() -> list[str]:
        runs = [dense_run.Run(folder, name, HOST, range(2)) for name in cases]
        runs += [each for run in runs for each in run.lending()]
        assert len(runs) == len(cases) + 1
        return dense_run.stress(runs, 12, 60)

    with emulated_ranks(2) as world:
        assert world.run(calls) == []
