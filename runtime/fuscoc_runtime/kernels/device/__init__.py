"""Device functions that the Triton kernels of one node are made of, like the CUDA headers.

Generated text binds them to a shuffle's rows and sizes. ``@triton.jit`` fixes when it is applied
whether a function is compiled or interpreted, and ``words`` how many ranks of a node there is room
for. So these modules are executed once for each mode and room, by ``load`` and never by an import
statement. A text whose segments go to every rank is told by ``destinations`` how many these are.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from fuscoc_runtime.room import LEAST, lanes_for, segments_of

_room = LEAST
_num_ranks = 1


def room() -> int:
    """Ranks of a node that modules which are executed now have room for."""
    return _room


@contextmanager
def having_room(ranks: int, num_ranks: int = 1) -> Iterator[None]:
    """Execute modules with room for so many ranks of a node, and texts for ``num_ranks`` of all
    nodes. By one thread at a time."""
    global _room, _num_ranks
    before = _room, _num_ranks
    _room, _num_ranks = ranks, num_ranks
    try:
        yield
    finally:
        _room, _num_ranks = before


def destinations(fanout: int, points: int) -> tuple[Any, Any, Any]:
    """Constants of a text whose segments have ``fanout`` points for every rank: how many those are,
    their lanes in a vector, and how many segments a tile of so many ``points`` has. As literals of
    a text they are plain numbers to an interpreter."""
    import triton

    each = fanout * _num_ranks
    lanes = lanes_for(each)
    number = int if triton.knobs.runtime.interpret else triton.language.constexpr
    return number(each), number(lanes), number(segments_of(points, lanes))


def load(name: str) -> ModuleType:
    """The module ``name`` of this package, for the mode that Triton is in and the room that ranks
    are to have."""
    import triton

    return _load(name, bool(triton.knobs.runtime.interpret), _room)


@cache
def _load(name: str, interpreted: bool, ranks: int) -> ModuleType:
    mode = f"{'interpreted' if interpreted else 'compiled'}_{ranks}"
    path = Path(__file__).with_name(f"{name}.py")
    spec: Any = importlib.util.spec_from_file_location(f"{__name__}.{mode}.{name}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    fix_keys(module)
    return module


def fix_keys(module: ModuleType) -> None:
    """Let Triton make the cache keys of a module's functions, in the order of their definition.

    Triton 3.6 puts into the key of a function only those constants of its callees whose keys it
    knows by then: with keys made when they are needed, the same kernel would be compiled again by a
    process that has compiled others before. It leaves out constants of other modules, which come as
    attributes: two rooms, or two versions of ``words``, would have one machine code. So they are
    added.
    """
    from triton.runtime.jit import JITFunction

    constants = _constants(module)
    for function in vars(module).values():
        if isinstance(function, JITFunction) and function.__module__ == module.__name__:
            function.hash = hashlib.sha256(f"{function.cache_key}{constants}".encode()).hexdigest()


def _constants(module: ModuleType) -> list[tuple[str, str, object]]:
    """Those of the modules that a module has loaded, and what computes such at compile time."""
    import triton.language as tl

    found = []
    for of, other in vars(module).items():
        if isinstance(other, ModuleType) and other.__name__.startswith(f"{__name__}."):
            for name, each in vars(other).items():
                if isinstance(each, tl.constexpr):
                    found.append((of, name, each.value))
                elif tl.core.is_builtin(each) and each.__module__ == other.__name__:
                    found.append((of, name, inspect.getsource(each)))
    return sorted(found)
