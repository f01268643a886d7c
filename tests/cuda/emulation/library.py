"""Printed CUDA text, with the headers that it includes, as a library of the host.

What is left of the text and the headers is all but their assembler: loads and stores that say how
they are ordered become atomic ones, bulk copies are made at once, and conversions are spelled out.
So it shows what threads, CTAs and ranks do together, and not how a GPU orders memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from tests.cuda.headers import headers
from tests.native import cxx

HERE = Path(__file__).parent

KERNEL = re.compile(
    r'extern "C" __global__ void __launch_bounds__\(\d+, 1\)\n'
    r"(\w+)\(const __grid_constant__ Call call\) \{ (.*?)\(call\); \}"
)
ORDERED = """
inline u32 load_relaxed(const u32* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
inline u64 load_relaxed(const u64* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
inline void store_relaxed(u32* at, u32 to) { __atomic_store_n(at, to, __ATOMIC_RELAXED); }
inline void store_relaxed(u64* at, u64 to) { __atomic_store_n(at, to, __ATOMIC_RELAXED); }
inline u32 exchange_relaxed(u32* at, u32 to) {
  return __atomic_exchange_n(at, to, __ATOMIC_RELAXED);
}
inline void add_relaxed(u32* at, u32 by) { __atomic_fetch_add(at, by, __ATOMIC_RELAXED); }
inline u32 load_acquire(const u32* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline u64 load_acquire(const u64* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
inline void fence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void fence_gpu() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void fence_bulk_proxy() {}
inline void let_next_start() {}
inline void wait_for_previous() {}
"""
LANES_BELOW = "  return (1u << emulation::lane()) - 1;\n}\n"
VECTOR = """  void load(const char* at) {
    emulation::check_aligned(at, min(kBytes, 16));
    memcpy(word, at, kBytes);
  }
  void store(char* at) const {
    emulation::check_aligned(at, min(kBytes, 16));
    memcpy(at, word, kBytes);
  }
"""
BF16 = """const auto one = [](float x) {
      const u32 bits = __float_as_uint(x);
      return x != x ? 0x7fffu : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    };
    word = one(low) | one(high) << 16"""
HALVES = "word = emulation::half_of(low) | emulation::half_of(high) << 16"
WHOLES = "to[0] = emulation::of_half(word), to[1] = emulation::of_half(word >> 16)"
LARGER = "larger = sum != sum || value < sum ? sum : value"
INSTEAD = {
    "row_copy.cuh": {
        "try_wait": "done = 1",
        "cp.async.bulk.shared": "emulation::copy_bulk(emulation::shared(shared), global, bytes)",
        "cp.async.bulk.global": "emulation::copy_bulk(global, emulation::shared(shared), bytes)",
        "": "(void)0",
    },
    "gate.cuh": {
        "mbarrier.init": "emulation::open_gate(gate, count)",
        "mbarrier.arrive": "emulation::arrive_at(gate)",
        "_wait.parity": "done = emulation::has_passed(gate, parity)",
        "": "(void)0",
    },
    "sort.cuh": {
        "cp.async.cg": "memcpy(shared, global, kBytes)",
        "cp.async.ca": "memcpy(shared, global, kBytes)",
        "": "(void)0",
    },
    "sorted_back.cuh": {"bar.sync": "emulation::wait_for(number, threads)"},
    "combine.cuh": {"bar.sync": "emulation::wait_for(team + 1, team_threads)"},
    "give_back.cuh": {"bar.sync": "emulation::wait_for(1, num_warps * kWarp)"},
    "move.cuh": {"bar.sync": "emulation::wait_for(1, threads)"},
    "vector.cuh": {
        "cvt.rn.bf16x2": BF16,
        "cvt.rn.f16x2": HALVES,
        "cvt.f32.f16": WHOLES,
        "max.NaN": LARGER,
    },
    "cast.cuh": {
        "rcp.approx": "inverse = 1.f / divisor",
        "cvt.rn.satfinite": "word = u16(narrow<Float8>(low) | narrow<Float8>(high) << 8)",
    },
}
"""What takes the place of assembler that holds a word, by header."""
# ``longjmp`` that is checked aborts where a fiber's stack lies below.
OPTIONS = ["-std=c++17", "-w", "-fno-strict-aliasing", "-U_FORTIFY_SOURCE", "-fPIC", "-pthread"]


def emulated(
    text: str, folder: Path, arch: int = 900, constants: Mapping[str, int] = MappingProxyType({})
) -> ctypes.CDLL:
    """A library with the kernels of ``text``, and ``run``; skips where there is no compiler.

    ``arch`` is that of ``__CUDA_ARCH__``, which decides about bulk copies; ``constants`` of the
    headers have other values than there.
    """
    kernels = KERNEL.sub(
        r'extern "C" void \1(const void* call) { \2(*static_cast<const Call*>(call)); }', text
    )
    texts = {name: _for_host(name, text) for name, text in headers(constants).items()}
    texts["emulation.h"] = (HERE / "emulation.h").read_text()
    texts["kernels.cpp"] = f"#define __CUDA_ARCH__ {arch}\n{kernels}"
    # Kernels run for as long as a compiler would take to make them fast.
    made = _made(texts, "kernels.cpp", ["-O0", "-shared", str(_runner())], folder)
    library = folder / "kernels.so"
    # A library of its own, since each has words that last from call to call.
    shutil.copy(made, library)
    return ctypes.CDLL(str(library))


def _runner() -> Path:
    texts = {name: (HERE / name).read_text() for name in ("emulation.h", "emulation.cpp")}
    with TemporaryDirectory() as folder:
        return _made(texts, "emulation.cpp", ["-O1", "-c"], Path(folder))


def _made(texts: dict[str, str], source: str, options: list[str], folder: Path) -> Path:
    """What the compiler makes of ``source``, which includes others of ``texts``, once in a run of
    all tests."""
    parts = [*options, *map(texts.__getitem__, sorted(texts))]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    made = Path(os.environ["FUSCOC_CACHE_DIR"], f"emulated_{digest[:32]}.o")
    if not made.exists():
        for name, each in texts.items():
            (folder / name).write_text(each)
        made.parent.mkdir(parents=True, exist_ok=True)
        partial = made.with_name(f"{folder.name}.o")
        command = [cxx(), *OPTIONS, str(folder / source), *options, "-o", str(partial)]
        subprocess.run(command, check=True)
        partial.replace(made)
    return made


def _for_host(name: str, text: str) -> str:
    if name == "base.cuh":
        text = _between(
            text,
            "__device__ __forceinline__ u32 load_relaxed",
            "__device__ __forceinline__ u64 tagged",
            ORDERED,
        )
        text = _between(text, "  u32 mask;\n", "}  // namespace fuscoc", LANES_BELOW)
        text = text.replace("#pragma once\n", '#pragma once\n#include "emulation.h"\n', 1)
    if name == "vector.cuh":
        load = "  __device__ __forceinline__ void load(const char* at) {"
        text = _between(text, load, "  // A sum that has no term is zero.", VECTOR)
    if name in INSTEAD:
        words = INSTEAD[name]
        text = _without_assembler(text, lambda asm: next(i for w, i in words.items() if w in asm))
    memory = "extern __shared__ __align__(128) unsigned char memory[];"
    return text.replace(memory, "unsigned char* const memory = emulation::cta->memory;")


def _between(text: str, first: str, end: str, instead: str) -> str:
    """``text`` with something else from ``first`` to ``end``, which stays."""
    head, rest = text.split(first, 1)
    return f"{head}{instead}{end}{rest.split(end, 1)[1]}"


def _without_assembler(text: str, instead: Callable[[str], str]) -> str:
    parts, begin = [], 0
    for found in re.finditer(r"\basm( volatile)?\(", text):
        end, depth, quoted = found.end(), 1, False
        while depth:
            quoted ^= text[end] == '"'
            depth += 0 if quoted else {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        parts += [text[begin : found.start()], instead(text[found.start() : end])]
        begin = end
    return "".join([*parts, text[begin:]])
