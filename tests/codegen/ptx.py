"""Compiling kernels for sm_90 without a GPU. Needs triton only."""

from __future__ import annotations

import re
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.codegen.memory import import_kernels

TARGET = GPUTarget("cuda", 90, 32)


def ptx_of(path: Path, num_warps: dict[str, int]) -> dict[str, str]:
    """The PTX of every kernel in a file, by name; a cubin is made too."""
    module = import_kernels(path, interpret=False)
    texts = {}
    for name, function in vars(module).items():
        if isinstance(function, triton.runtime.JITFunction) and not _is_helper(function):
            source = ASTSource(function, signature=dict.fromkeys(function.arg_names, "i64"))
            compiled = triton.compile(
                source, target=TARGET, options={"num_warps": num_warps.get(name, 4)}
            )
            assert compiled.asm["cubin"]
            texts[name] = compiled.asm["ptx"]
    return texts


def _is_helper(function: triton.runtime.JITFunction) -> bool:
    """Whether only kernels call the function: these take nothing but annotated integers."""
    integers = [param.annotation and not param.is_constexpr for param in function.params]
    return not integers or not all(integers)


def accesses(ptx: str, kind: str) -> set[str]:
    """The shapes of a kernel's global loads (``ld``) or stores (``st``): v4.b32, b16, ..."""
    found = re.findall(rf"\b{kind}\.global(?:\.cg|\.L\w+|\.\w+::\w+)*\.((?:v[24]\.)?b\d+)", ptx)
    return set(found)


def barriers_before_release(ptx: str) -> int:
    """CTA-wide barriers between the last store and the releasing atomic."""
    release = re.search(r"\b(?:atom|red)\b[\w.]*\.release\b", ptx)
    assert release is not None
    stores = [match.start() for match in re.finditer(r"\bst\.global", ptx[: release.start()])]
    assert stores
    return ptx.count("bar.sync", stores[-1], release.start())


def released_without_barrier(ptx: str) -> set[int]:
    """Lines with a store to global memory from which some path reaches a releasing atomic without
    a barrier of the CTA: other threads' stores might come behind it."""
    lines = [line.split("//")[0].strip() for line in ptx.splitlines()]
    labels = {line[:-1]: number for number, line in enumerate(lines) if line.endswith(":")}
    found = set()
    for number, line in enumerate(lines):
        if not re.search(r"\bst\.global", line):
            continue
        ahead, seen = [number + 1], set[int]()
        while ahead:
            at = ahead.pop()
            if at in seen or at >= len(lines) or "bar.sync" in lines[at]:
                continue
            seen.add(at)
            if re.search(r"\b(?:atom|red)\b[\w.]*\.release\b", lines[at]):
                found.add(number)
                break
            if branch := re.search(r"\bbra(?:\.uni)?\s+(\S+);", lines[at]):
                ahead.append(labels[branch[1]])
            if not re.match(r"(?:bra\.uni|ret)\b", lines[at]):
                ahead.append(at + 1)
    return found
