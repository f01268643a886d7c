"""Compiling kernels for sm_90 without a GPU. Needs triton only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from fuscoc_runtime.kernels import device
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


def row_accesses(ptx: str) -> Counter[tuple[str, int]]:
    """How many loads (``ld``) and stores (``st``) a kernel of pieces has for bytes of rows, by the
    bytes that a thread moves by one of them.

    Rows are copied by `lines.py` alone. What else it reads are words of boxes, which its text
    says, so that the lines that accesses are of tell one from the other.
    """
    (lines,) = re.findall(r'\.file\s+(\d+) ".*\blines\.py"', ptx)
    of_rows = _lines_of_rows()
    found: Counter[tuple[str, int]] = Counter()
    at = ("", 0)
    assembly = r"(?s)// begin inline asm.*?// end inline asm"
    for line in re.sub(assembly, _with_one_place, ptx).splitlines():
        if place := re.match(r"\s*\.loc\s+(\d+) (\d+)", line):
            at = place[1], int(place[2])
        elif at[0] == lines and at[1] in of_rows:
            found.update(_widths(line))
        else:
            assert all(width <= 8 for _, width in _widths(line)), f"not of a row: {line}"
    return found


def _with_one_place(asm: re.Match[str]) -> str:
    """Assembly with the first place that it is said to be from: others are those of the lines
    behind, one for each of its own lines."""
    before, place, rest = asm[0].partition("\t.loc")
    own, end, rest = rest.partition("\n")
    return before + place + own + end + re.sub(r"\t\.loc.*\n", "", rest)


@cache
def _lines_of_rows() -> set[int]:
    """The lines with a load or a store of what is no word of a box, numbered from 1."""
    word = r"tl\.(?:load|store)\((?!box|step|before)"
    text = Path(device.__file__).with_name("lines.py").read_text(encoding="utf-8")
    return {number for number, line in enumerate(text.splitlines(), 1) if re.search(word, line)}


def _widths(line: str) -> Iterator[tuple[str, int]]:
    """The loads and stores of global memory in a line of PTX, and how many bytes they move."""
    access = r"\b(ld|st)(?=\.)[\w.:]*\.global[\w.:]*?(?:\.v(\d))?\.[bsuf](\d+)\b"
    for kind, count, bits in re.findall(access, line):
        yield kind, int(count or 1) * int(bits) // 8


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
