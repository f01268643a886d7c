"""Memory of a fixed capacity: what ``fuscoc explain`` says is what the runtime allocates."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from fuscoc.explain import fixed
from fuscoc.explain.command import read_shuffles
from fuscoc.explain.formula import Symbol, with_values
from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.comm.liveness import Liveness, this_process
from fuscoc_runtime.comm.requests import Window
from fuscoc_runtime.engine.node import slabs
from fuscoc_runtime.engine.node.crossing import crossing
from fuscoc_runtime.engine.node.slabs import new_slab_memory, num_places, slab_places
from fuscoc_runtime.engine.node.state import Limits
from fuscoc_runtime.engine.node.triton_memory import TritonMemory
from fuscoc_runtime.engine.node.triton_program import TritonProgram
from fuscoc_runtime.engine.sizes import fixed_length, worst_capacity
from fuscoc_runtime.face.choice import choose_triton
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.engine import specs
from tests.engine.test_replies import QUERIES
from tests.node_triton.given_specs import EXAMPLES

CPU = torch.device("cpu")
MOE = Path(__file__).parents[2] / "examples" / "moe.fsc"
DISTINCT = "packed(s) distinct align 128"
BAGS = MOE.with_name("embedding.fsc").read_text()
for large, small in (("rows = 1_048_576", "rows = 480"), ("bag = 32", "bag = 3"), ("256", "96")):
    BAGS = BAGS.replace(large, small)
TEXTS = (
    specs.routed("bf16", keys=96),
    specs.routed("f16", keys=96, topk=5, align=1, reduce="max", placement="cyclic"),
    specs.routed("f32", keys=96, capacity="compact"),
    specs.routed("f32", keys=96, topk=5, capacity="distinct"),
    specs.routed("f32", keys=96, align=1, placement="cyclic", capacity="distinct"),
    specs.FIELDS,
    QUERIES.replace("ALIGN", ""),
    QUERIES.replace("ALIGN", "compact"),
    BAGS,
    specs.GRID,
    EXAMPLES["all_gather"].text,
    EXAMPLES["halo"].text,
    specs.routed("f32", keys=96).replace("index k : topk", "index k : ranks"),
)
PIECES = (
    specs.SPREAD,
    specs.patches(p=2, c=3),
    EXAMPLES["redistribute"].text,
    EXAMPLES["kv_long_pages"].text,
)
"""Inside a node their memory is another, which is not said."""
CAPACITY = 77
ONE_NODE, SEVERAL = ("1x1", "1x8", "1x12"), ("2x1", "2x2", "3x4", "4x8", "2x24")
PAIRS = [*product(TEXTS, ONE_NODE + SEVERAL), *product(PIECES, SEVERAL)]


def allocated(text: str, topology: Topology, max_sources: int) -> tuple[int, int]:
    """Bytes of the window of rank 0, and of its slabs."""
    opened = specs.artifact(text)
    shuffle = opened.shuffle().among(topology.num_ranks)
    store, answered = HashStore(), shuffle.segments_answered
    alive = Liveness(store, 0, [this_process()])
    members = Membership(0, topology, None, CPU, store, alive, 60.0)
    most = -(-max_sources // answered) * answered  # for whole rows of a reply
    capacity = capacity_of(shuffle, topology.num_ranks, most)
    found = _allocated(opened, shuffle, members, Limits(most, capacity))
    if shuffle.reply is None:
        return found
    assert shuffle.node is not None
    if topology.num_nodes > 1:
        most = num_places(shuffle, shuffle.node, most)
    others = _allocated(opened, shuffle.reply, members, Limits(most // answered, capacity))
    return found[0] + others[0], found[1] + others[1]


def capacity_of(shuffle: ShuffleSpec, num_ranks: int, most: int) -> int:
    if shuffle.program.target.kind == "dense":
        return fixed_length(shuffle, num_ranks) or CAPACITY
    return worst_capacity(shuffle, num_ranks, most)


def _allocated(
    opened: Artifact, shuffle: ShuffleSpec, members: Membership, limits: Limits
) -> tuple[int, int]:
    topology, most = members.topology, limits.max_sources
    node = choose_triton(shuffle, topology, most)
    assert not isinstance(node, str), node
    slab_bytes, places = 0, None
    if topology.num_nodes > 1:
        found = crossing(shuffle, topology)
        crosses = None if found is None else int(found.amax())
        slab_bytes = new_slab_memory(shuffle, node, topology, most, CPU, crosses).num_bytes
        places = slab_places(shuffle, node, most, crosses)
        limits = replace(limits, max_sources=topology.num_nodes * num_places(shuffle, node, most))
    program = TritonProgram(opened, shuffle, node, members)
    taken = []

    def allocate(num_bytes: int) -> Window:
        taken.append(num_bytes)
        bases = torch.zeros(topology.ranks_per_node, dtype=torch.int64)
        return Window(torch.empty(num_bytes, dtype=torch.uint8), bases)

    TritonMemory(program, limits, allocate, limits.num_entries, slab_places=places)
    return taken[0], slab_bytes


@settings(max_examples=at_night(25), deadline=None)
@given(
    st.sampled_from(PAIRS),
    st.integers(1, 70),
    st.sampled_from([0, 40_000, slabs.STAGING_BYTES]),
)
def test_windows_and_slabs_are_as_large_as_said(
    pair: tuple[str, str], max_sources: int, staging_bytes: int
) -> None:
    """Whether sums come back at once or in turns."""
    text, name = pair
    with mock.patch.object(slabs, "STAGING_BYTES", staging_bytes):
        _compare(text, name, max_sources)


def _compare(text: str, name: str, max_sources: int) -> None:
    topology, [shuffle] = Topology.parse(name), specs.artifact(text).manifest.shuffles
    node = choose_triton(shuffle, topology, max_sources)
    assert not isinstance(node, str), node
    assert node.pieces is None
    most = Symbol("most", "most")
    parts = (make(shuffle, node, topology, most) for make in (fixed.window, fixed.slabs))
    known = {"most": max_sources, "capacity": CAPACITY}
    said = [with_values(fixed.total(each), known) for each in parts]
    assert (*said,) == allocated(text, topology, max_sources)


@pytest.mark.parametrize(
    ("changed", "rows", "is_small"),
    [
        ("packed(s) align 128", 64 * 128 * 8 + 4 * 127, False),
        ("packed(s) align 128 compact", 8 * 8 * 128, True),
        ("packed(s) align 128 capacity max 24_576", 24_576, True),
        (DISTINCT, 64 * 128 * 4, True),
    ],
    ids=["any routing", "compact", "limited", "as it is"],
)
def test_a_model_on_64_ranks(changed: str, rows: int, is_small: bool, tmp_path: Path) -> None:
    """128 tokens of 7,168 values: rows, and what 7 ranks send back of segments of 8 nodes, those of
    others in two turns. A rank has 4 of the 8 different keys of a token, or fewer."""
    spec, topology = tmp_path / "moe.fsc", Topology(8, 8)
    spec.write_text(MOE.read_text().replace(DISTINCT, changed))
    [shuffle] = read_shuffles(spec, {})
    node = choose_triton(shuffle, topology, 128)
    assert not isinstance(node, str), node
    window, row, sources = 0, 2 * 7168, 8 * 8 * 128
    columns, slots = 32 + 8 * ("compact" in changed), rows
    if "compact" in changed:
        slots = 64 * 128 * 8 + 4 * 127
        window += 4 * ceiling(8 * slots)
    window += row * rows + row * 7 * (128 + 7 * 64)
    window += 4 * 8 * 8 * sources + 4 * sources + 8 * sources
    blocks = 8 * -(-columns // node.key_block)
    window += ceiling(4 * 2 * 8 * 8 * (columns + 1)) + ceiling(4 * 8 * blocks) + 12 * 1024
    assert fixed.total(fixed.window(shuffle, node, topology, 128)) == window
    assert (window <= 512 << 20) == is_small


def ceiling(num_bytes: int) -> int:
    return -(-num_bytes // 1024) * 1024
