"""The rules by which keys take slots, ``fuscoc_runtime.padding``, as device functions of their
names: (points of keys, slots of a block) -> blocks."""

import triton

from fuscoc_runtime.padding import PADDINGS

globals().update({name: triton.jit(rule) for name, rule in PADDINGS.items()})
