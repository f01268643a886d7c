"""Which engine executes a shuffle, and the errors that CUDA kernels leave behind."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuscoc.artifact import MANIFEST
from fuscoc.lang.checked import CheckedShuffle
from fuscoc_runtime.engine.node import cuda
from fuscoc_runtime.engine.node.places import have_ways
from fuscoc_runtime.engine.node.rings import HandleRings
from fuscoc_runtime.engine.node.state import (
    BAD_KEYS,
    PAGE_WORDS,
    STATE_WORDS,
    Limits,
    Trouble,
    parse_page,
    parse_state,
    parse_wait,
)
from fuscoc_runtime.engine.node.watch import find_errors
from fuscoc_runtime.engine.sizes import worst_capacity
from fuscoc_runtime.errors import (
    ExcessError,
    KeyRangeError,
    NoSlotError,
    OutdatedError,
    RefusedCallError,
    SizesError,
    from_json,
    to_json,
)
from fuscoc_runtime.face.choice import (
    Gpu,
    choose_cuda,
    choose_exact,
    choose_triton,
    missing_dtype,
)
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.manifest.program import PackedSlots
from fuscoc_runtime.manifest.schema import Manifest, ShuffleSpec
from fuscoc_runtime.room import LEAST
from fuscoc_runtime.topology import Topology
from tests.artifact.test_manifest import compiled
from tests.engine.specs import GRID, artifact
from tests.engine.test_replies import QUERIES
from tests.node_triton.given_specs import EXAMPLES
from tests.specs import POLICY, moe, moe_fp8, redistribute, repeating, vit_patches

HOPPER, AMPERE, ADA = (
    Gpu((9, 0), 227 * 1024),
    Gpu((8, 0), 163 * 1024),
    Gpu((8, 9), 99 * 1024),
)
NODE = Topology(1, 4)


TEXTS: dict[str, Callable[[], CheckedShuffle]] = {
    "moe": moe,
    "fp8": moe_fp8,
    "repeating": repeating,
    "table": partial(moe, placement="table"),
    "balanced": partial(moe, policy=replace(POLICY, balance="auto")),
    "staged": partial(moe, policy=replace(POLICY, schedule="fast")),
    "bounded": partial(moe, capacity=4096),
    "static": redistribute,
    "ragged": vit_patches,
}


@cache
def spec(name: str = "moe") -> ShuffleSpec:
    files = compiled(TEXTS[name]())
    (shuffle,) = decode(Manifest, json.loads(files[MANIFEST])).shuffles
    return shuffle


def test_triton_casts_to_f8e4m3_on_newer_gpus() -> None:
    reason = "Triton can do so from sm_89 on, and this is sm_80"
    assert missing_dtype(spec("fp8"), AMPERE) == reason
    for gpu in (HOPPER, ADA, None):
        assert missing_dtype(spec("fp8"), gpu) is None
    assert missing_dtype(spec(), AMPERE) is None


@pytest.mark.parametrize(("gpu", "arch"), [(HOPPER, "sm_90"), (AMPERE, "sm_80")])
def test_the_kernels_that_fit_the_gpu(gpu: Gpu, arch: str) -> None:
    chosen = choose_cuda(spec(), NODE, gpu, 64)
    assert not isinstance(chosen, str)
    assert chosen.arch == arch
    newer = choose_cuda(spec(), NODE, Gpu((10, 0), gpu.shared_bytes), 64)
    assert newer == chosen


@pytest.mark.parametrize(
    ("name", "topology", "gpu", "max_sources", "reason"),
    [
        ("moe", NODE, HOPPER, None, "without `max_sources`"),
        ("moe", NODE, None, 64, "do not compute on CUDA"),
        ("moe", Topology(2, 4), HOPPER, 64, "2 nodes"),
        ("moe", Topology(1, 16), HOPPER, 64, "16 ranks"),
        ("moe", NODE, ADA, 64, "too small a GPU"),
        ("moe", NODE, Gpu((7, 5), 227 * 1024), 64, "too small a GPU"),
        ("repeating", NODE, HOPPER, 64, "dedup"),
    ],
)
def test_reasons(
    name: str, topology: Topology, gpu: Gpu | None, max_sources: int | None, reason: str
) -> None:
    chosen = choose_cuda(spec(name), topology, gpu, max_sources)
    assert isinstance(chosen, str)
    assert reason in chosen


@pytest.mark.parametrize(
    ("name", "topology", "reason"),
    [
        ("moe", Topology(2, 4), "2 nodes"),
        ("moe", Topology(1, 144), "144 ranks"),
        ("repeating", NODE, "dedup"),
    ],
)
def test_reasons_for_no_triton_kernels_of_one_node(
    name: str, topology: Topology, reason: str
) -> None:
    chosen = choose_triton(spec(name), topology)
    assert isinstance(chosen, str)
    assert reason in chosen
    assert choose_triton(spec("moe"), NODE) == spec("moe").node


@pytest.mark.parametrize(
    ("name", "topology", "most", "reason"),
    [
        ("repeating", Topology(2, 4), 8, "dedup"),
        ("moe", Topology(2, 144), 8, "144 ranks"),
        ("moe", Topology(2, 4), 8192, "118227968 bytes to other nodes"),
        ("moe", Topology(9, 4), 1024, "bytes to other nodes"),
    ],
)
def test_reasons_for_no_fixed_capacity_between_nodes(
    name: str, topology: Topology, most: int, reason: str
) -> None:
    chosen = choose_triton(spec(name), topology, most)
    assert isinstance(chosen, str)
    assert reason in chosen
    for held in (Topology(2, 4), Topology(128, 8), Topology(2, 72)):
        assert choose_triton(spec("moe"), held, 16) == spec("moe").node
    assert choose_triton(spec("moe"), Topology(2, 4), 4096) == spec("moe").node
    static = spec("static").node  # half of whose 1024 rows cross, whatever there is room for
    assert static is not None
    assert choose_triton(spec("static"), Topology(2, 4), 16384) == static.between


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"gpu": None}, "take longer"),
        ({"wanted": "general"}, "FUSCOC_ENGINE is general"),
        ({"topology": Topology(2, 144)}, "144 ranks"),
        ({"topology": Topology(1 << 16, 1)}, "bytes to other nodes"),
        ({"shuffle": "repeating"}, "dedup"),
        ({"shuffle": "static"}, "made once"),
        ({"shuffle": "ragged"}, "pieces"),
    ],
)
def test_reasons_for_the_general_engine(changed: dict[str, Any], reason: str) -> None:
    given = {"topology": NODE, "gpu": HOPPER}
    for topology in (NODE, Topology(2, 4), Topology(128, 8)):
        chosen = choose_exact(spec("moe"), **{**given, "topology": topology})
        assert chosen == spec("moe").node
    given |= changed
    chosen = choose_exact(spec(given.pop("shuffle", "moe")), **given)
    assert isinstance(chosen, str)
    assert reason in chosen


@pytest.mark.parametrize(
    ("name", "some", "none"),
    [("balanced", Topology(2, 4), Topology(4, 1)), ("staged", Topology(3, 1), Topology(2, 4))],
)
def test_a_policy_is_for_what_leaves_a_choice(name: str, some: Topology, none: Topology) -> None:
    """With exact sizes, by the kernels that carry calls without one."""
    rules = spec(name).program.exchange
    assert have_ways(rules, some)
    assert not have_ways(rules, none)
    assert not have_ways(spec("moe").program.exchange, some)
    for topology in (some, Topology(3, 72)):
        assert choose_exact(spec(name), topology, HOPPER) == spec(name).node


def test_a_table_places_keys_by_any_kernels() -> None:
    table = spec("table")
    for topology in (NODE, Topology(2, 4)):
        assert choose_triton(table, topology, 8) == table.node
        assert choose_exact(table, topology, HOPPER) == table.node


def test_what_replies_leave_to_the_general_engine() -> None:
    plain, compact = (
        artifact(QUERIES.replace("ALIGN", packing)).shuffle() for packing in ("", "compact")
    )
    assert plain.reply is not None
    assert plain.reply.node is not None
    lookup = (Path("examples") / "embedding.fsc").read_text()
    bags = artifact(lookup.replace("packed(s)", "packed(s) compact")).shuffle()
    assert choose_triton(plain, NODE, 8) == choose_exact(plain, NODE, HOPPER)
    assert choose_triton(compact, NODE, 8) == compact.node
    text = QUERIES.replace("ALIGN", "").replace("k), *]", "k), *] balance split")
    split = artifact(text).shuffle()
    for ranks in (Topology(2, 1), Topology(2, 4), Topology(2, 72)):
        assert choose_exact(split, ranks, HOPPER) == split.node
    topology = Topology(2, 4)
    for ranks in (NODE, topology):
        assert choose_exact(compact, ranks, HOPPER) == compact.node
        assert "for several each" in str(choose_exact(bags, ranks, HOPPER))
    assert choose_triton(plain, topology, 8) == plain.node
    assert choose_exact(plain, topology, HOPPER) == plain.node
    # Slabs of 12-byte queries would not be too large, those of their answers are.
    wide = artifact(QUERIES.replace("ALIGN", "").replace("y : f32[2]", "y : f32[2000]")).shuffle()
    assert choose_triton(wide, topology, 8000) == wide.node
    said = str(choose_triton(wide, topology, 10_000))
    assert said.startswith("in its reply room for")
    assert "more than" in said


@pytest.mark.parametrize("topology", [NODE, Topology(2, 4)])
def test_what_one_node_may_refuse_for_all_has_kernels(topology: Topology) -> None:
    """Slots that are given, and those of a limited capacity."""
    for shuffle in (artifact(GRID).shuffle(), spec("bounded")):
        assert choose_triton(shuffle, topology, 8) == shuffle.node
        assert choose_exact(shuffle, topology, HOPPER) == shuffle.node


def test_a_program_holds_the_points_of_all_ranks() -> None:
    """The number of these decides, and with it how many segments a tile has."""
    shuffle = artifact(EXAMPLES["all_gather"].text).shuffle()
    assert shuffle.node is not None
    for topology, segments in ((Topology(2, 3), 16), (Topology(8, 128), 1)):
        opened = shuffle.among(topology.num_ranks)
        assert opened.program.fanout == topology.num_ranks
        assert opened.node == replace(shuffle.node, tile_sources=segments)
        assert choose_triton(shuffle, topology, 8) == opened.node
        assert choose_exact(shuffle, topology, HOPPER) == opened.node
    reason = "a segment has 1032 destinations, more than 1024"
    assert choose_triton(shuffle, Topology(129, 8), 8) == reason
    assert choose_exact(shuffle, Topology(129, 8), HOPPER) == reason


@pytest.mark.parametrize("name", ["static", "ragged"])
def test_pieces_move_by_rows_between_nodes(name: str) -> None:
    shuffle, topology = spec(name), Topology(2, 4)
    assert shuffle.node is not None
    assert shuffle.node.pieces is not None
    assert shuffle.node.between is not None
    assert choose_triton(shuffle, NODE, 8) == shuffle.node
    assert choose_triton(shuffle, topology, 8) == shuffle.node.between
    assert choose_exact(shuffle, topology, HOPPER) == shuffle.node.between


@given(
    align=st.integers(1, 128),
    num_ranks=st.integers(1, 8),
    kind=st.sampled_from(["block", "cyclic", "table"]),
    data=st.data(),
)
def test_the_worst_capacity_is_always_enough(
    align: int, num_ranks: int, kind: str, data: st.DataObject
) -> None:
    """Whatever keys the points have, no rank needs more slots."""
    target = spec().program.target
    assert isinstance(target, PackedSlots)
    placement = dataclasses.replace(target.placement, kind=kind)
    num_keys = data.draw(st.integers(num_ranks, 12))
    target = dataclasses.replace(target, num_keys=num_keys, align=align, placement=placement)
    program = dataclasses.replace(spec().program, target=target)
    shuffle = dataclasses.replace(spec(), program=program)
    owner = {
        "block": lambda key: key // -(-num_keys // num_ranks),
        "cyclic": lambda key: key % num_ranks,
        "table": lambda key: 0,
    }[kind]
    points = num_ranks * shuffle.program.fanout
    keys = data.draw(st.lists(st.integers(0, num_keys - 1), max_size=points))
    for rank in range(num_ranks):
        counts = [keys.count(key) for key in range(num_keys) if owner(key) == rank]
        slots = sum(-(-count // align) * align for count in counts)
        assert slots <= worst_capacity(shuffle, num_ranks, 1)


COUNTS = st.integers(0, 3)
KINDS_OF_PACKED = ("bad_keys", "overflowed", "excess", "bad_sizes", "outdated", "overwritten")
TROUBLES = st.builds(
    Trouble,
    refusals=st.tuples(*[COUNTS] * LEAST),
    **dict.fromkeys(KINDS_OF_PACKED, COUNTS),
)
LIMITS = Limits(max_sources=9, capacity=64)


@given(trouble=TROUBLES)
def test_words_of_a_device(trouble: Trouble) -> None:
    """State and page hold the same counts, in the same order."""
    *others, refusals = dataclasses.astuple(trouble)
    counts = [*others, *refusals]
    words = [7] * STATE_WORDS
    words[BAD_KEYS : BAD_KEYS + len(counts)] = counts
    assert parse_state(words) == trouble
    assert parse_page([7, 7, *counts, 7]) == trouble
    assert len([7, 7, *counts, 7]) == PAGE_WORDS


@given(before=TROUBLES, now=TROUBLES)
def test_errors_of_a_device(before: Trouble, now: Trouble) -> None:
    """Every count that has grown is told once, an error a kind and a peer."""
    found = list(find_errors(spec(), 1, LIMITS, before, now))
    told = Counter[str]()
    for error, _ in found:
        assert str(from_json(to_json(error))) == str(error)
        match error:
            case KeyRangeError():
                assert (error.highest, error.key) == (255, "topk_idx[t, k]")
                told["bad"] += error.count
            case NoSlotError():
                assert error.capacity == 64
                told["over"] += error.count
            case ExcessError():
                assert error.max_sources == 9
                told["excess"] += error.count
            case SizesError():
                assert error.source == "by_token"
                told["sizes"] += error.count
            case RefusedCallError():
                told[f"refused {error.peer}"] += error.count
            case OutdatedError():
                told[error.what] += error.count
    grown = {
        "bad": now.bad_keys - before.bad_keys,
        "over": now.overflowed - before.overflowed,
        "excess": now.excess - before.excess,
        "sizes": now.bad_sizes - before.bad_sizes,
        "routing": now.outdated - before.outdated,
        "rows": now.overwritten - before.overwritten,
    }
    for peer, (old, new) in enumerate(zip(before.refusals, now.refusals, strict=True)):
        grown[f"refused {peer}"] = new - old
    assert told == {name: count for name, count in grown.items() if count > 0}
    if found:
        assert list(find_errors(spec(), 1, LIMITS, found[-1][1], now)) == []


def test_a_wait_that_is_shown() -> None:
    code = (2 << 28 | 71 << 20 | 17 | 1 << 31) - (1 << 32)  # as an int32 reads it
    assert parse_wait(code << 32 | 5) == (71, "rows of group 17")


@given(num_handles=st.integers(1, 4), captured=st.lists(st.booleans(), max_size=20))
def test_memory_of_handles(num_handles: int, captured: list[bool]) -> None:
    """An entry is live until ``num_handles`` further ones of its kind; no two live ones share."""
    rings = HandleRings(num_handles)
    taken = [rings.next(each) for each in captured]
    assert len({entry.ticket for entry in taken}) == len(taken)
    live = [entry for entry in taken if rings.is_live(entry)]
    assert len({entry.index for entry in live}) == len(live)
    assert all(0 <= entry.index < 2 * max(2, num_handles) for entry in taken)
    for kind in (False, True):
        mine = [entry for entry in taken if entry.captured == kind]
        assert [entry for entry in live if entry.captured == kind] == mine[-num_handles:]


@pytest.mark.parametrize(
    ("lacks", "theirs", "all_have"), [(0, 0, True), (1, 0, False), (0, 1, False)]
)
def test_a_rank_without_a_compiler_decides_for_all(lacks: int, theirs: int, all_have: bool) -> None:
    """Kernels in CUDA that nobody has asked for; every rank says whether it has them."""
    said = list[int]()

    def meet(occasion: str, word: int) -> list[int]:
        said.append(word)
        return [word, theirs]

    def compiled(*_: Any) -> Any:
        if lacks:
            raise cuda.CudaError("no compiler")
        return mock.Mock(cubins={"sm_90": b"code"})

    members: Any = SimpleNamespace(device=torch.device("cpu"), meet=meet)
    chosen = choose_cuda(spec("static"), NODE, HOPPER, 64)
    assert not isinstance(chosen, str)
    with mock.patch.multiple(cuda, _compiled=compiled, load_kernels=lambda *_: {}):
        assert cuda.all_have_cuda(mock.Mock(), spec("static"), chosen, members) == all_have
    assert said == [lacks]
