"""What takes ranks seconds to import: the server that they are forked from imports this module.

Nothing of it is garbage, so that no rank's collections go through it, and its pages stay shared.
"""

import atexit
import gc

import torch.distributed  # noqa: F401
import triton.experimental.gluon
import triton.language
import triton.runtime.interpreter  # noqa: F401

import fuscoc_runtime.deep_ep
import fuscoc_runtime.demo.rank
import fuscoc_runtime.face.shuffle  # noqa: F401

gc.collect()
gc.freeze()
atexit.register(gc.unfreeze)  # of the server: modules are taken apart at its end
