"""The runtime of fuscoc: opens artifacts and executes them, from one CPU to a cluster.

Importing this package loads neither torch nor triton; the first use of ``Shuffle``, ``Pool`` or
``fused_shuffle`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuscoc_runtime import logs
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.manifest.artifact import Artifact, load_artifact
from fuscoc_runtime.topology import Topology

if TYPE_CHECKING:
    from fuscoc_runtime.face.decorator import fused_shuffle
    from fuscoc_runtime.face.pool import Pool
    from fuscoc_runtime.face.shuffle import Shuffle

logs.configure()

__version__ = "0.1.0"
__all__ = [
    "Artifact",
    "FuscoRuntimeError",
    "Pool",
    "Shuffle",
    "Topology",
    "fused_shuffle",
    "load_artifact",
]

_NEED_TORCH = {"Pool": "pool", "Shuffle": "shuffle", "fused_shuffle": "decorator"}


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        from importlib import import_module

        return getattr(import_module(f"fuscoc_runtime.face.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
