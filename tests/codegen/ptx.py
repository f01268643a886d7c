"""Compiling kernels for sm_90 without a GPU. Needs triton only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tests.codegen.memory import import_kernels

TARGET = GPUTarget("cuda", 90, 32)


class PtxOf(Mapping[str, str]):
    """The PTX of the kernels in a file, by what tests call them: their own names unless others are
    given, name by other name. Each is compiled when it is first asked for, which takes a second; a
    cubin is made too."""

    def __init__(
        self, path: Path, num_warps: Mapping[str, int], names: Mapping[str, str] | None = None
    ) -> None:
        found = {
            name: function
            for name, function in vars(import_kernels(path, interpret=False)).items()
            if isinstance(function, triton.runtime.JITFunction) and not _is_helper(function)
        }
        self._names = {name: name for name in found} if names is None else names
        assert set(self._names.values()) == set(found)
        self._functions, self._num_warps, self._texts = found, num_warps, dict[str, str]()

    def __getitem__(self, name: str) -> str:
        if name not in self._texts:
            function = self._functions[self._names[name]]
            source = ASTSource(function, signature=dict.fromkeys(function.arg_names, "i64"))
            options = {"num_warps": self._num_warps.get(self._names[name], 4)}
            compiled = triton.compile(source, target=TARGET, options=options)
            assert compiled.asm["cubin"]
            self._texts[name] = compiled.asm["ptx"]
        return self._texts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


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
