"""``fuscoc explain``: sizes computed by hand, bounds that every plan keeps, and what is printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuscoc.cli import main
from fuscoc.explain import facts, tiles
from fuscoc.explain.command import (
    read_shuffles,
    run_time_names,
    target_dims,
    topology_values,
)
from fuscoc.explain.formula import (
    Formula,
    arithmetic,
    least,
    product,
    symbols,
    text,
    total,
    with_values,
)
from fuscoc.explain.formula import Symbol as Named
from fuscoc.lang.dtypes import ITEM_BYTES
from fuscoc.source import read_source
from fuscoc.testing.planning import plan_of
from fuscoc.testing.strategies import cases, specs
from fuscoc_runtime.demo.generate import generate
from fuscoc_runtime.engine import buffers
from fuscoc_runtime.face.lockstep import LockstepShuffle
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.topology import Topology
from tests.drawn import at_night
from tests.engine import specs as engine_specs
from tests.engine.lockstep import round_trip
from tests.specs import EXAMPLE_NAMES

HANDING_OVER = engine_specs.routed("f32", options="balance rebalance")
EXAMPLES = Path(__file__).parents[2] / "examples"
ON_2X4 = topology_values(Topology(2, 4))


def example(name: str) -> ShuffleSpec:
    (shuffle,) = read_shuffles(EXAMPLES / f"{name}.fsc", {})
    return shuffle


@pytest.fixture(scope="module")
def moe() -> ShuffleSpec:
    return example("moe")


@pytest.fixture(scope="module")
def vit() -> ShuffleSpec:
    return example("vit_patches")


@pytest.fixture(scope="module")
def ulysses() -> ShuffleSpec:
    return example("ulysses")


def numbers(shuffle: ShuffleSpec, values: dict[str, int]) -> dict[str, tuple[Formula, int]]:
    """Rows and bytes of a row of every buffer."""
    segments = with_values(facts.num_segments(shuffle), values)
    return {
        each.name: (with_values(each.rows, values), each.row_bytes)
        for each in facts.buffers(shuffle, segments)
    }


def test_moe(moe: ShuffleSpec) -> None:
    assert facts.segment_bytes(moe.declared.source_fields) == 14_336  # 7168 elements of 2 bytes
    assert text(facts.num_segments(moe)) == "tokens"
    source, target = facts.layouts(moe)
    assert text(product(source.cells, source.fields[0].cell_bytes)) == "14,336 × tokens"
    assert source.fields[0].strides == target.fields[0].strides == (14_336,)
    (copy,) = facts.copies(moe)
    assert (copy.run_bytes, copy.num_runs, copy.loops, copy.vector_bytes) == (14_336, 1, (), 16)

    values = {"tokens": 4096, **ON_2X4}
    assert [with_values(hop.copies, values) for hop in facts.hops(moe)] == [1, 8, 7]
    assert with_values(source.cells, values) == 4096
    # 8 ranks send 4096 tokens to 8 slots each, all to this one; 32 keys start at multiples of 128.
    slots = 8 * 4096 * 8 + 32 * 127
    assert numbers(moe, values) == {
        "slices": (4096, 14_336),  # each token once to the other node
        "landing": (4096, 14_336),  # from the one sender in the other node
        "target": (slots, 14_336),
        "staging": (4096 * 5, 14_336),  # from each of 4 ranks, and from the other node
        "forward_staging": (4096 * 4, 28_672),  # from each of 4 ranks, in f32
        "return_slices": (4096, 14_336),
    }
    assert numbers(moe, {"tokens": 4096, **topology_values(Topology(1, 4))})["slices"] == (
        0,
        14_336,
    )


def test_vit_patches(vit: ShuffleSpec) -> None:
    assert facts.segment_bytes(vit.declared.source_fields) == 588  # 14 x 14 pixels of 3 bytes
    assert text(facts.num_segments(vit)) == "Σn ((height(n) / 14) × (width(n) / 14))"
    pictures, sequence = facts.layouts(vit)
    assert list(map(text, pictures.fields[0].strides)) == [
        "3 × height(n) × width(n)",
        "3 × width(n)",
        "3",
    ]
    assert text(product(sequence.cells, 588)) == "588 × length"
    (copy,) = facts.copies(vit)
    assert (copy.run_bytes, copy.num_runs) == (42, 14)  # 14 pixels of 3 bytes, 14 times
    [(count, stride)] = copy.loops
    assert (count, text(stride)) == (14, "3 × width(n)")
    assert copy.vector_bytes == 2  # 42 is no multiple of 4

    values = {"images": 8, "height": 224, "width": 336}
    assert with_values(facts.num_segments(vit), values) == 8 * 16 * 24
    assert [with_values(each, values) for each in pictures.fields[0].strides] == [225_792, 1008, 3]
    assert with_values(product(pictures.cells, 3), values) == 8 * 224 * 336 * 3
    assert set(run_time_names(vit)) == {"images", "height", "width", "length"}


def test_ulysses(ulysses: ShuffleSpec) -> None:
    assert facts.segment_bytes(ulysses.declared.source_fields) == 64 * 256
    source, target = facts.layouts(ulysses)
    # 4096 tokens over 8 ranks, 32 heads of 256 bytes each; in the target, blocks of 64 tokens.
    assert [with_values(dim, ON_2X4) for dim in source.dims] == [512, 32]
    assert [with_values(each, ON_2X4) for each in source.fields[0].strides] == [8192, 256]
    assert with_values(target.cells, ON_2X4) == 64 * 4
    source_file = read_source(EXAMPLES / "ulysses.fsc")
    _, target = facts.layouts(ulysses, target_dims(source_file, {}, [ulysses])["ulysses"])
    assert [with_values(dim, ON_2X4) for dim in target.dims] == [4, 64]
    assert [with_values(each, ON_2X4) for each in target.fields[0].strides] == [2**20, 2**14]
    assert [with_values(hop.copies, ON_2X4) for hop in facts.hops(ulysses)] == [1, 1, 0]


@settings(max_examples=at_night(30))
@given(st.data())
def test_no_plan_has_more_rows(data: st.DataObject) -> None:
    spec = data.draw(specs())
    routing = data.draw(cases(spec, max_nodes=3, max_ranks_per_node=3))
    plan = plan_of(spec, routing)
    most = max(rank.num_sources for rank in plan.ranks)
    bounds = facts.buffer_rows(spec.shuffle, most)
    values = topology_values(routing.topology)
    values["length"] = max(rank.extents.get("length", 0) for rank in routing.ranks)
    for name, rows in vars(plan.ranks[0].max_rows).items():
        bound = with_values(bounds[name], values)
        assert isinstance(bound, int)
        assert rows <= bound, name


@settings(max_examples=at_night(30))
@given(specs(), st.integers(1, 9), st.integers(1, 9))
def test_strides_are_those_of_arrays(spec, rows: int, size: int) -> None:
    values = {"rows": rows, "length": rows, "size": size, "height": 2 * size, "width": 3 * size}
    source, _ = facts.layouts(spec.shuffle)
    dims = [with_values(dim, values) for dim in source.dims]
    for each in source.fields:
        item = ITEM_BYTES[each.field.dtype]
        shape = (*dims, *each.field.shape)
        expected = np.empty(shape, f"V{item}").strides[: len(dims)]
        assert tuple(with_values(stride, values) for stride in each.strides) == expected
        assert with_values(product(source.cells, each.cell_bytes), values) == np.prod(shape) * item


NAMES = ("a", "b", "c")
formulae = st.recursive(
    st.integers(0, 9) | st.sampled_from(NAMES).map(lambda name: Named(name, name)),
    lambda inner: st.one_of(
        st.builds(arithmetic, st.sampled_from(["+", "-", "*"]), inner, inner),
        st.builds(product, inner, inner),
        st.builds(least, inner, inner),
        st.builds(total, st.just("n"), inner, inner),
    ),
    max_leaves=6,
)


@given(formulae, st.fixed_dictionaries({name: st.integers(1, 9) for name in NAMES}))
def test_the_text_of_a_formula_has_its_value(formula: Formula, values: dict[str, int]) -> None:
    value = with_values(formula, values)
    assert isinstance(value, int)
    code = re.sub(r"(?<=\d),(?=\d)", "", text(formula)).replace("×", "*").replace("−", "-")
    assert eval(code, {"min": min, **values}) == value
    assert symbols(formula) <= set(NAMES)


@pytest.fixture
def explain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run ``fuscoc explain`` in this process: returns its exit code, stdout and stderr."""

    def run(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setenv("COLUMNS", "200")
        monkeypatch.setattr(sys, "argv", ["fuscoc", "explain", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        output = capsys.readouterr()
        return int(exit_.value.code or 0), output.out, output.err

    return run


def rows_of(output: str) -> list[list[str]]:
    return [line.split() for line in output.splitlines()]


def test_everything_is_printed(explain) -> None:
    code, out, _ = explain(EXAMPLES / "moe.fsc", "-E", "tokens=4096", "--topology", "2x4")
    assert code == 0
    assert "A segment, `token`, is 14,336 bytes: x bf16[7168]." in out
    assert "58,720,256 (58.7 MB)" in out
    assert ["dispatch", "moe_pack", "net_send", "source", "→", "slices"] in rows_of(out)
    assert "there are 2 nodes, and CUDA kernels only work inside one" in out
    assert "by every dispatch, which depends on topk_idx, tokens; combine uses its plan." in out
    code, out, _ = explain(EXAMPLES / "kv_cache.fsc")
    assert code == 0
    assert "There is no way back." in out
    assert "combine" not in out
    code, out, _ = explain(EXAMPLES / "kv_cache.fsc")
    assert code == 0
    assert "Rows land in a window; from there each rank copies them into `cache`" in out
    assert ["block_table", "route", "i64[slots]", "8", "×", "slots"] in rows_of(out)
    code, out, _ = explain(EXAMPLES / "vit_patches.fsc")
    assert code == 0
    assert ["pixels", "42", "B", "14", "2", "B", "14", "at", "3", "×", "width(n)"] in rows_of(out)
    assert "Tiles of the kernels" in out


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_tiles_fill_what_they_say(name: str) -> None:
    """Numbers that are printed as the reason for others are their reason."""
    shuffle = example(name)
    found = list(tiles.sizes(shuffle))
    computes = any(cast.normalise is not None for cast in shuffle.declared.casts)
    between = {size.name: size.value for size in found if size.kernels == "Triton, between nodes"}
    found = [size for size in found if size.kernels != "Triton, between nodes"]
    if shuffle.node is None or shuffle.node.between is None:
        assert not between
    else:  # where pieces are moved as rows
        assert between.keys() >= {"plan_points", "row_warps", "tile_rows"}
        assert between.items() <= shuffle.node.between.tile.items()
    if shuffle.reply is not None or computes:
        assert {size.kernels for size in found} == {"Triton"}
        return
    assert shuffle.cuda is not None
    if shuffle.cuda.pieces is not None:
        legs = [size for size in found if size.kernels == "CUDA, sm_80"]
        names = ["dispatch_warps", "combine_warps"][: 1 + (shuffle.program.combine is not None)]
        entries = bool(shuffle.cuda.pieces.entry_points)
        assert [size.name for size in legs] == names + ["entry_group"] * entries
        for warps in legs[: len(names)]:
            lines, line_bytes, in_flight = in_figures(warps.why)
            assert in_flight == warps.value * 32 * lines * line_bytes
        return
    assert {size.kernels for size in found} >= {"CUDA, sm_90", "CUDA, sm_80"}
    for kernels in ("CUDA, sm_90", "CUDA, sm_80"):
        values = {size.name: size.value for size in found if size.kernels == kernels}
        whys = {size.name: in_figures(size.why) for size in found if size.kernels == kernels}
        buffer_bytes, room, most = whys["dispatch_warps"]
        assert values["dispatch_warps"] == min(most, room // buffer_bytes)
        row_bytes, rows, _ = whys["num_passes"]
        assert rows * buffer_bytes <= room
        fewer = values["num_passes"] - 1
        assert not fewer or rows * (row_bytes // fewer) > room * 0.9  # parts are rounded up
        if "combine_rows" in values:
            most_bytes, most_rows, least = whys["combine_rows"]
            copied = max(least, min(most_bytes // max(row_bytes, 1), most_rows))
            assert copied < 2 * values["combine_rows"] <= 2 * copied
            assert values["teams"] * values["combine_rows"] * 8 == whys["teams"][0]
            assert values["team_batch"] == whys["team_batch"][0]
        elif "teams" in values:
            (warps,) = whys["teams"]
            assert values["teams"] == min(15, warps // values["team_warps"])
            assert values["team_batch"] * values["team_vectors"] == whys["team_batch"][0]


def test_short_rows_are_sorted() -> None:
    """Two tiles of them fit, and no larger ones are as short as they have to be."""
    (shuffle,) = read_shuffles(EXAMPLES / "hash_buckets.fsc", {"width": 4})
    for kernels in ("CUDA, sm_90", "CUDA, sm_80"):
        found = {each.name: each for each in tiles.sizes(shuffle) if each.kernels == kernels}
        size = found["sorted_rows"]
        row_bytes, most, room = in_figures(size.why)
        assert row_bytes == 16
        assert size.value * row_bytes == most
        assert 2 * most < room


def in_figures(words: str) -> list[int]:
    return [int(number.replace(",", "")) for number in re.findall(r"[0-9][0-9,]*", words)]


def test_a_static_shuffle_is_planned_for_its_topology(explain) -> None:
    code, out, _ = explain(EXAMPLES / "ulysses.fsc", "--topology", "2x4")
    assert code == 0
    assert "Row buffers of a rank, as planned" in out
    # 8 blocks of this rank, 16 of 32 heads on the other node, 16 KiB each.
    assert any(row[:1] == ["slices"] and row[-5:-3] == ["128", "16,384"] for row in rows_of(out))
    code, out, err = explain(EXAMPLES / "ulysses.fsc", "--topology", "3x1")
    assert (code, out) == (1, "")
    assert "FSC057" in err


def test_constants_and_artifacts(explain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, from_spec, _ = explain(EXAMPLES / "moe.fsc", "-D", "hidden=64")
    assert "128 bytes: x bf16[64]" in from_spec
    import fuscoc

    fuscoc.compile(EXAMPLES / "moe.fsc", tmp_path / "moe", hidden=64)
    assert explain(tmp_path / "moe") == (0, from_spec, "")


def test_what_nothing_depends_on_is_refused(explain) -> None:
    code, _, err = explain(EXAMPLES / "moe.fsc", "--extent", "token=1")
    assert code == 2
    assert "did you mean `tokens`?" in " ".join(err.replace("│", " ").split())
    code, _, err = explain(EXAMPLES / "moe.fsc", "--shuffle", "other")
    assert code == 1
    assert "there is no shuffle `other`" in err


@settings(max_examples=12)
@given(
    st.sampled_from(["1x2", "2x1", "2x2"]),
    st.sampled_from([engine_specs.routed(), engine_specs.FIELDS, HANDING_OVER]),
    st.integers(0, 9),
    st.integers(0, 99),
)
def test_windows_are_as_large_as_said(topology: str, spec: str, tokens: int, seed: int) -> None:
    """To the byte: what is allocated for a round trip, given the rows that its plan has; and no
    more than what is said without a plan."""
    shuffle = LockstepShuffle(engine_specs.artifact(spec), topology=Topology.parse(topology))
    done = round_trip(shuffle, generate(shuffle.spec, shuffle.topology, tokens, seed))
    plan = done[0].handle.plan
    values = topology_values(shuffle.topology)
    said = with_values(facts.window_bytes(shuffle.spec, vars(plan.max_rows)), values)
    assert [pool.num_bytes for pool in shuffle._pools] == [said] * shuffle.topology.num_ranks
    most = facts.buffer_rows(shuffle.spec, max(each.handle.plan.num_sources for each in done))
    bound = with_values(facts.window_bytes(shuffle.spec, most), values)
    assert isinstance(bound, int)
    assert said <= bound


def test_the_windows_of_a_model(moe: ShuffleSpec, explain) -> None:
    """By hand: slots of 4 keys, each of which every token may have once, and what comes back from
    every rank and in every node."""
    tokens, ranks, nodes, row = 128, 64, 8, 14_336
    signals = 4 * 8 * (1 + max(each.signal or 0 for each in moe.program.launches))
    expected = (
        ranks * tokens * 4 * row + tokens * 8 * row + tokens * (nodes - 1) * 8 * 2 * row + signals
    )
    code, out, _ = explain(
        EXAMPLES / "moe.fsc", "-E", f"tokens={tokens}", "--topology", f"{nodes}x8"
    )
    assert code == 0
    assert f"{expected:,}" in out


def test_memory_of_a_fixed_capacity(explain) -> None:
    given = EXAMPLES / "moe.fsc", "--topology", "8x8"
    code, out, _ = explain(*given, "-E", "tokens=128")
    assert code == 0
    assert "529,790,976 (529.8 MB)" in out
    assert "4 × 65,536 × cdiv(max_sources," in explain(*given)[1]
    given = EXAMPLES / "vit_patches.fsc", "--topology"
    assert "588 × capacity" in explain(*given, "2x1")[1]  # of rows; inside a node pieces are told
    assert "Memory of a rank with" not in explain(*given, "1x2")[1]


def test_memory_of_results_that_peers_store_into(explain) -> None:
    """Of two, of segments of 64 × 128 × 2 bytes, if the size is known."""
    title = "Memory of a rank for results"
    out = explain(EXAMPLES / "ulysses.fsc", "--topology", "1x2")[1]
    assert title in out
    assert f"2 × {4096 // 64 // 2 * 32 * 64 * 128 * 2:,}" in out
    assert "2 × 588 × max_sources" in explain(EXAMPLES / "vit_patches.fsc", "--topology", "1x2")[1]
    more = explain(EXAMPLES / "ulysses.fsc", "--topology", "1x16")[1]  # than CUDA's kernels take
    assert f"{title}, with `max_sources` on 1x16, by the Triton kernels" in " ".join(more.split())
    for example, topology in (("ulysses", "1x1"), ("ulysses", "2x2"), ("moe", "1x2")):
        assert title not in explain(EXAMPLES / f"{example}.fsc", "--topology", topology)[1]


def test_nodes_of_many_ranks(explain) -> None:
    out = " ".join(explain(EXAMPLES / "moe.fsc", "--topology", "1x16")[1].split())
    assert "CUDA no the node has 16 ranks, more than 8 Triton, one node yes" in out
    assert "Memory of a rank with `max_sources` on 1x16" in out


def test_signals_are_those_of_the_engine() -> None:
    assert facts.SIGNAL_BYTES == buffers.WORD_BYTES
