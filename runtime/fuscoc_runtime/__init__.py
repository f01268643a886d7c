"""The runtime of fuscoc: opens artifacts and executes them, from one CPU to a cluster.

Importing this package loads neither torch nor triton; the first use of ``Shuffle`` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fuscoc_runtime.artifact import Artifact, load_artifact
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.topology import Topology

if TYPE_CHECKING:
    from fuscoc_runtime.shuffle import Shuffle

__all__ = ["Artifact", "FuscoRuntimeError", "Shuffle", "Topology", "load_artifact"]


def __getattr__(name: str) -> Any:
    if name == "Shuffle":
        from fuscoc_runtime.shuffle import Shuffle

        return Shuffle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
