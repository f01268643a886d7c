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
