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
    return module
