"""The Triton kernels of one node: which shuffles have them, their text, and what it compiles to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuscoc.capabilities import TRITON_NODE, find_fault
from fuscoc.codegen.triton_expressions import MAX_COLUMNS
from fuscoc.lang.check import check_file
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.manifest import CompiledShuffle
from fuscoc.pipeline import compile_to_ir
from fuscoc.source import SourceFile
from fuscoc_runtime.kernels import device
from fuscoc_runtime.kernels.loader import launching, load_kernel
from fuscoc_runtime.manifest.schema import KernelArg, KernelSpec
from fuscoc_runtime.room import LEAST
from tests.codegen.ptx import (
    PtxOf,
    accesses,
    barriers_before_release,
    released_without_barrier,
    row_accesses,
)
from tests.codegen.specs import scratch
from tests.dialect.support import check_goldens
from tests.engine.specs import FIELDS, GRID, MAXIMA, ragged_keys, routed
from tests.node_triton.given_specs import EXAMPLES
from tests.specs import EXAMPLE_NAMES, checked_example, moe, node_of

GOLDEN = Path(__file__).parent / "golden"


def checked(text: str) -> CheckedShuffle:
    (shuffle,) = check_file(SourceFile("spec.fsc", text), {}).shuffles
    return shuffle


SHUFFLES = {
    "moe": moe(),
    "fields": checked(FIELDS),
    "compact": checked(routed("bf16", hidden=7168, capacity="compact")),
    "long": checked(routed("f32", hidden=20000, topk=5, keys=7, placement="cyclic")),
}


PIECES = {name: checked_example(name) for name in ("ulysses", "vit_patches")}
LINES = {name: checked_example(name) for name in ("fft_transpose", "redistribute", "kv_pages")}
ANY = {
    "casts": """
    shuffle casts {
      index t : tokens   index e : 12
      segment wide { x : f8e5m2[40], y : bf16[96], z : f32[7], w : f8e4m3[64], v : f32[4] }
      segment row { y : f8e4m3[96], s : f32[3], z : f16[7], x : bf16[40], w : f16[64] }
      layout source[t] of wide
      layout by_key[e, s] of row packed(s)
      place e on rank by block
      route r(t) -> e = input idx : int64
      dispatch source[t] -> by_key[r(t), *] cast(x, y by s, z, w by v)
      combine reverse
    }""",
    "sums": """
    shuffle sums {
      index t : tokens   index k : 40   index e : 9000
      segment row { x : f16[5], y : f64[2], z : bf16[300] }
      layout source[t] of row
      layout by_key[e, s] of row packed(s) compact
      place e on rank by block
      route r(t, k) -> e = input idx : int64
      weight w(t, k) : f32 = input weights
      dispatch source[t] -> by_key[r(t, k), *]
      combine reverse reduce sum(w)
    }""",
    "maxima": MAXIMA,
    "ragged": ragged_keys(300),
}
GIVEN = {"grid": checked(GRID), "pages": checked(EXAMPLES["kv_pages"].text)}
SHUFFLES |= PIECES | LINES | GIVEN | {name: checked(text) for name, text in ANY.items()}


@cache
def compiled(name: str, between: bool = False) -> PtxOf:
    """PTX of every kernel by its role; of pieces those inside a node, or ``between`` nodes."""
    node = node_of(SHUFFLES[name])
    if between:
        assert node.between is not None
        node = node.between
    path = scratch() / f"{Path(node.file).name.replace('.', '_')}_{name}.py"
    path.write_text(node.text, encoding="utf-8")
    num_warps = {kernel.name: kernel.num_warps for kernel in node.kernels.values()}
    return PtxOf(path, num_warps, {role: kernel.name for role, kernel in node.kernels.items()})


@pytest.mark.parametrize("name", EXAMPLE_NAMES)
def test_golden(name: str) -> None:
    checked = checked_example(name)
    fault = find_fault(checked, TRITON_NODE)
    if fault is not None:
        check_goldens(GOLDEN, name, {".txt": f"{fault.reason}\n"})
        return
    node = node_of(checked)
    texts = {".py": node.text}
    if node.between is not None:
        texts[".rails.py"] = node.between.text
    check_goldens(GOLDEN, name, texts)


def test_golden_of_a_reply() -> None:
    reply = checked_example("embedding").reply
    assert reply is not None
    check_goldens(GOLDEN, reply.name, {".py": node_of(reply).text})


@pytest.mark.parametrize("name", SHUFFLES)
def test_form(name: str) -> None:
    text = node_of(SHUFFLES[name]).text
    ast.parse(text)
    assert text == node_of(SHUFFLES[name]).text
    assert max(map(len, text.splitlines())) <= MAX_COLUMNS
    assert not any(line.endswith(" ") for line in text.splitlines())


FORTH = {"count", "exchange", "assign", "dispatch", "pack", "forward"}
BACK = {"combine", "collect", "finish"}
"""Kernels by their roles, inside a node and between nodes."""
ROWS = {"dispatch", "pack", "combine", "finish"}
"""Those that convert rows or add them up."""
ALL = FORTH | BACK | {"place"}


def by_day(parts: Mapping[str, set[str]], names: Iterable[str]) -> list[Any]:
    """Names with the roles that are compiled: by day ``parts`` of some and all of the others, and
    all at night."""
    nightly = [pytest.param(name, ALL, marks=pytest.mark.nightly) for name in parts]
    return [*((name, parts.get(name, ALL)) for name in names), *nightly]


@pytest.mark.parametrize(
    ("name", "roles"), by_day({"fields": ROWS, "compact": ROWS}, ["moe", "fields", "compact"])
)
def test_compiles_without_spills(name: str, roles: set[str]) -> None:
    sums, kernels = SHUFFLES[name].combine is not None, compiled(name)
    assert set(kernels) == FORTH | (BACK if sums else set())
    for role in kernels.keys() & roles:
        assert ".local" not in kernels[role]


@pytest.mark.parametrize(
    ("name", "roles"),
    by_day(
        {
            "casts": ROWS,
            "sums": {"count", "assign", "dispatch", "pack", "combine"},
            "maxima": ROWS,
            "ragged": {"count", "assign", "dispatch"},
        },
        ANY,
    ),
)
def test_any_rows_compile(name: str, roles: set[str]) -> None:
    """What an interpreter takes, a compiler need not: constants of 8-bit floats, say."""
    kernels = compiled(name)
    assert set(kernels) == FORTH | BACK
    assert all(".entry" in kernels[role] for role in kernels.keys() & roles)


@pytest.mark.parametrize(
    ("name", "roles"),
    by_day({"grid": {"place", "pack"}, "pages": ROWS | {"place"}}, GIVEN),
)
def test_given_slots_compile(name: str, roles: set[str]) -> None:
    """Claims are exchanged, and where segments must lie apart their first cells are marked: inside
    a node by what claims slots, between nodes by what packs."""
    kernels = compiled(name)
    assert set(kernels) == (FORTH | BACK | {"place"}) - {"count", "assign"}
    for role in kernels.keys() & roles:
        assert ".local" not in kernels[role]
    assert re.search(r"\.relaxed\.sys\.exch|\.sys\.relaxed\.exch", kernels["place"])
    for role in ("place", "pack"):
        marks = re.search(r"\.relaxed\.gpu\.or|\.gpu\.relaxed\.or", kernels[role])
        assert bool(marks) == (name == "pages")


@pytest.mark.parametrize(
    ("num_ranks", "roles"),
    [(1024, ROWS), *(pytest.param(each, ALL, marks=pytest.mark.nightly) for each in (2, 64, 1024))],
)
def test_rows_to_every_rank_compile(num_ranks: int, roles: set[str]) -> None:
    """For the ranks that there are."""
    node = node_of(checked_example("all_gather"))
    path = scratch() / f"to_every_rank_{num_ranks}.py"
    path.write_text(node.text, encoding="utf-8")
    num_warps = {kernel.name: kernel.num_warps for kernel in node.kernels.values()}
    chosen = node.kernels.keys() & roles
    assert "dispatch" in chosen
    with device.having_room(LEAST, num_ranks):
        ptx = PtxOf(path, num_warps)
        assert not any(".local" in ptx[node.kernels[role].name] for role in chosen)


def test_numbers_of_ranks_share_no_machine_code() -> None:
    node = node_of(checked_example("all_gather"))
    path, code = scratch() / "to_every_rank.py", node.text.encode()
    keys = set()
    for kernel in node.kernels.values():
        arguments = tuple(KernelArg(name, "scalar", name) for name in kernel.parameters)
        spec = KernelSpec(kernel.name, node.file, kernel.name, arguments, kernel.num_warps, ())
        for num_ranks in (2, 3, 4):
            loaded = load_kernel(path, spec, code, interpreted=False, num_ranks=num_ranks)
            keys.add(loaded.function.cache_key)
    assert len(keys) == 3 * len(node.kernels) - 2  # lengths are exchanged alike


@pytest.mark.parametrize("name", PIECES)
def test_pieces_compile(name: str) -> None:
    back = {"combine", "lend"} if SHUFFLES[name].combine is not None else set()
    few = {"dispatch_few"} if name == "vit_patches" else set()  # whose words are narrow
    assert set(compiled(name)) == {"plan", "dispatch"} | few | back
    assert all(".entry" in ptx for ptx in compiled(name).values())
    for role in {"dispatch"} | few:
        assert barriers_before_release(compiled(name)[role]) > 0
    # A combine's first releases say what this rank has begun; the last one is that of an item.
    *_, before_last, _ = re.finditer(r"\.release\b", compiled(name)["combine"])
    assert barriers_before_release(compiled(name)["combine"][before_last.end() :]) > 0


@pytest.mark.parametrize("name", PIECES)
def test_ranks_meet_around_results_that_are_lent(name: str) -> None:
    """Peers store behind what they acquire, and each program tells of its stores by an atomic that
    releases to all GPUs, behind which the last one tells the peers."""
    ptx = compiled(name)["lend"]
    assert ".local" not in ptx
    assert not released_without_barrier(ptx)
    stores = [each.end() for each in re.finditer(r"\bst\.global\.v2\.b64|\bst\.global\.v4", ptx)]
    before, behind = ptx[: stores[-1]], ptx[stores[-1] :]
    assert re.search(r"\.sys\.release\.exch\.b64", before)
    assert re.search(r"ld\.global\.sys\.acquire\.b64", before)
    leaves = re.search(r"\batom\.global\.sys\.acq_rel\.add\.u32", behind)
    assert leaves
    assert "bar.sync" in behind[: leaves.start()]
    tells = re.search(r"\.sys\.release\.exch\.b64", behind[leaves.end() :])
    assert tells
    assert "ld.acquire.sys.global.b64" in behind[leaves.end() + tells.end() :]


def test_programs_that_hold_items_look_by_lanes() -> None:
    """Threads may see different values of what others write, so each has a lane of its own."""
    for name, warps in {"ulysses": [1, 8, 4, 4], "vit_patches": [1, 4, 4, 4, 4]}.items():
        assert [each.num_warps for each in node_of(PIECES[name]).kernels.values()] == warps
    ptx = compiled("ulysses")["dispatch"]
    assert ".local" not in ptx
    # By a program that holds an item and by one that does not, at slots, at arrivals, and each once
    # more.
    assert len(re.findall(r"@%p\d+ ld\.volatile\.global\S* \{ %r\d+ \}", ptx)) == 7
    for room, warps, lanes in [(8, 1, 32), (8, 4, 128), (8, 8, 256), (128, 2, 128)]:
        assert lanes_of(room, warps) == lanes


@pytest.mark.parametrize(
    ("name", "role"), [("moe", "combine"), ("ulysses", "combine"), ("ulysses", "lend")]
)
def test_rows_that_come_back_are_acquired_by_every_thread(name: str, role: str) -> None:
    """Each thread looks at a flag by itself, and all wait for one verdict of all of them."""
    ptx = re.sub(r"\n\s*\.loc.*", "", compiled(name)[role])
    looks = re.findall(r"ld\.acquire\.sys\.global\.b64 (\w+), \[(%rd\d+)\];([^}]*)}", ptx)
    assert looks
    for seen, _, behind in looks:
        compare, verdict, told = (line.strip() for line in behind.strip().split(";")[:3])
        assert re.fullmatch(rf"setp\.eq\.b64 same, {seen}, %rd\d+", compare)
        assert verdict == "barrier.cta.red.and.pred same, 0, same"
        assert re.fullmatch(r"selp\.b32 %r\d+, 1, 0, same", told)


def lanes_of(room: int, num_warps: int) -> int:
    """`sync.lanes` of kernels of so many warps, compiled for a node of so many ranks."""
    with launching(interpreted=False), device.having_room(room):
        sync = device.load("sync")
    builder = SimpleNamespace(options=SimpleNamespace(num_warps=num_warps))
    return int(sync.lanes(_semantic=SimpleNamespace(builder=builder)).value)


@pytest.mark.parametrize(
    "name", [pytest.param("ulysses", marks=pytest.mark.nightly), "vit_patches"]
)
def test_rows_of_pieces_compile(name: str) -> None:
    """Between nodes."""
    kernels = compiled(name, between=True)
    assert set(kernels) == {"exchange", "place", "pack", "forward", "collect", "finish"}
    assert not any(".local" in ptx for ptx in kernels.values())


@pytest.mark.parametrize("role", ["dispatch", "combine", "lend"])
@pytest.mark.parametrize("name", ["ulysses", *LINES])
def test_pieces_move_sixteen_bytes_at_once(name: str, role: str) -> None:
    """Nothing of a row is moved otherwise. A thread has eight lines of 16 bytes at once; or four,
    where there are twice as many threads, in each of two loops: that of programs that hold an item,
    and that of programs that take one after the other."""
    node = node_of(SHUFFLES[name])
    loops = 2 if role == "dispatch" and "holds=True" in node.text else 1
    assert loops * 1024 == 8 * 32 * node.kernels[role].num_warps, "1024 lines at once"
    assert row_accesses(compiled(name)[role]) == {("ld", 16): 8, ("st", 16): 8}


@pytest.mark.parametrize(("role", "lines"), [("dispatch", 2), ("combine", 2), ("lend", 4)])
def test_patches_are_stored_sixteen_bytes_at_once(role: str, lines: int) -> None:
    """Runs are 14 pixels of 3 bytes, so they begin at any even address: a thread reads its lines by
    eight words of two bytes each, and stores each at once. Words are stored one by one only where a
    line is cut by the end of a patch."""
    expected = {("ld", 2): 8 * lines, ("st", 16): lines, ("st", 2): 8 * lines}
    assert row_accesses(compiled("vit_patches")[role]) == expected


def test_rows_move_sixteen_bytes_at_once() -> None:
    assert "v2.b64" in accesses(compiled("moe")["dispatch"], "ld")
    assert "v2.b64" in accesses(compiled("moe")["dispatch"], "st")
    assert "v4.b32" in accesses(compiled("moe")["combine"], "ld")
    assert "v4.b32" in accesses(compiled("moe")["combine"], "st")


@pytest.mark.parametrize(
    ("name", "role"),
    [("moe", "exchange"), ("moe", "dispatch"), ("moe", "combine"), ("compact", "dispatch")],
)
def test_stores_come_before_the_signal_and_waits_acquire(name: str, role: str) -> None:
    ptx = compiled(name)[role]
    assert not released_without_barrier(ptx)
    assert released_without_barrier(re.sub(r"bar\.sync.*", "", ptx))
    assert re.search(r"release\.\w*\.?exch|\.sys\.release\.exch", ptx)
    assert re.search(r"sys\.acquire|acquire\.sys", ptx)


def test_a_copy_of_everything_has_no_combine() -> None:
    kernels = node_of(SHUFFLES["fields"]).kernels
    assert set(kernels) == FORTH
    assert [value for value in kernels["dispatch"].parameters.values() if "." in value] == [
        "source.scales", "source.payload", "source.id",
        "rows_at.scales", "rows_at.payload", "rows_at.id",
    ]  # fmt: skip


def test_rows_of_a_compact_target_are_stored_once() -> None:
    ptx = compiled("compact")["dispatch"]
    assert "v2.b64" in accesses(ptx, "st")
    assert "load_row=" not in node_of(SHUFFLES["compact"]).text


def test_rows_too_long_for_registers_are_taken_in_parts() -> None:
    assert "parts=3" in node_of(SHUFFLES["long"]).text


@pytest.mark.parametrize("backend", ["cuda", "triton"])
def test_the_spec_chooses(backend: str) -> None:
    policy = replace(moe().policy, backend=backend)
    shuffle = replace(moe(), policy=policy)
    item = CompiledShuffle(shuffle, compile_to_ir(shuffle).module, {})
    assert isinstance(item.node, str) == (backend == "cuda")
    assert isinstance(item.cuda, str) == (backend == "triton")
