"""What takes ranks seconds to import: the server that they are forked from imports this module.

Nothing of it is garbage, so that no rank's collections go through it, and its pages stay shared.
"""

import atexit
import gc
from pathlib import Path

import torch._dynamo  # by decorated functions
import torch.distributed.tensor  # noqa: F401  # by torch.testing's comparisons
import triton.experimental.gluon
import triton.language  # noqa: F401
from triton.runtime.interpreter import InterpretedFunction

import fuscoc.artifact
import fuscoc.driver
import fuscoc.pipeline  # noqa: F401
import fuscoc_runtime.deep_ep
import fuscoc_runtime.demo.rank
import fuscoc_runtime.face.shuffle  # noqa: F401
from fuscoc_runtime.kernels import device
from fuscoc_runtime.kernels.loader import device_module, launching

with launching(interpreted=True):
    for path in Path(device.__file__).parent.glob("[!_]*.py"):
        for each in list(vars(device_module(path.stem, interpreted=True)).values()):
            if isinstance(each, InterpretedFunction):
                each.rewrite()  # as the interpreter wants it

gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # of the server: modules are taken apart at its end
