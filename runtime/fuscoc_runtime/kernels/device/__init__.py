"""Device functions that the Triton kernels of one node are made of, like the CUDA headers.

Generated text binds them to a shuffle's rows and sizes. ``@triton.jit`` fixes when it is applied
whether a function is compiled or interpreted, so these modules are executed once for each mode, by
``load`` and never by an import statement.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any


def load(name: str) -> ModuleType:
    """The module ``name`` of this package, for the mode that Triton is in."""
    import triton

    return _load(name, bool(triton.knobs.runtime.interpret))


@cache
def _load(name: str, interpreted: bool) -> ModuleType:
    mode = "interpreted" if interpreted else "compiled"
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
    process that has compiled others before.
    """
    from triton.runtime.jit import JITFunction

    for function in vars(module).values():
        if isinstance(function, JITFunction) and function.__module__ == module.__name__:
            _ = function.cache_key
