"""Runs a program whose ``import deep_ep`` means fuscoc's, in all processes that it spawns, too.

``python -m fuscoc_runtime.deep_ep.run MODULE ARGUMENTS…`` is ``python -m MODULE ARGUMENTS…``
otherwise. A spawned process begins by importing the main module of its parent, which is this one,
unless it is called ``__main__``: so nothing can have looked for DeepEP before.
"""

from __future__ import annotations

import runpy
import sys

from fuscoc_runtime.deep_ep import install

install()

if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python -m fuscoc_runtime.deep_ep.run MODULE [ARGUMENTS]")
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__")
