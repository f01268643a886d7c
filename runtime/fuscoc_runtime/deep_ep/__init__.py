"""DeepEP's interface on fuscoc: ``Buffer``, ``ElasticBuffer`` and what its callers need beside it.

::

    import fuscoc_runtime.deep_ep as deep_ep   # or, for programs that say `import deep_ep`:
    fuscoc_runtime.deep_ep.install()

It follows the legacy ``Buffer`` and the ``ElasticBuffer`` of DeepEP 2.1.0
(https://github.com/deepseek-ai/DeepEP, commit dd758caf4518). What is not here is refused by name:
``docs/integrations.md`` has the list.
"""

from __future__ import annotations

import sys

import torch

from fuscoc_runtime.deep_ep.base import Config
from fuscoc_runtime.deep_ep.buffer import Buffer
from fuscoc_runtime.deep_ep.elastic import ElasticBuffer
from fuscoc_runtime.deep_ep.ep_handle import EPHandle
from fuscoc_runtime.deep_ep.events import EventHandle, EventOverlap

__version__ = "2.1.0"
__all__ = [
    "Buffer",
    "Config",
    "EPHandle",
    "ElasticBuffer",
    "EventHandle",
    "EventOverlap",
    "install",
    "topk_idx_t",
]

topk_idx_t = torch.int64


def install() -> None:
    """Make ``import deep_ep`` mean this module from now on, in this process.

    Raises:
        ImportError: another ``deep_ep`` has been imported already.
    """
    there = sys.modules.setdefault("deep_ep", sys.modules[__name__])
    if there is not sys.modules[__name__]:
        raise ImportError(f"deep_ep is {there.__file__} already: install this before its import")
