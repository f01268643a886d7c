"""Texts of L3 kernels, which tests of verifiers put together."""

from __future__ import annotations

ARGS = """args = [{kind = "scalar", name = "n", value = "n"},
  {element = i64, kind = "column", name = "c", value = "c"},
  {kind = "address", name = "m", value = "m"},
  {element = bf16, kind = "address", name = "w", value = "w"}]"""


BLOCK = "%n: i64, %c: i64, %m: i64, %w: i64"


def kernel_of(name: str, body: str, args: str = ARGS, block: str = BLOCK) -> str:
    """A kernel around ``body``."""
    return f"""
"fsc.kernel"() ({{
^bb0({block}):
  %zero = arith.constant 0 : i64
  {body}
}}) {{{args}, num_warps = 4 : i64, sym_name = "{name}"}} : () -> ()
"""


SIGNAL = '"fsc.signal"(%c, %n, %n, %n) : (i64, i64, i64, i64) -> ()'


def in_loop(body: str) -> str:
    return f'"fsc.for_each_descriptor"(%n) ({{ ^bb0(%i: i64): {body} }}) : (i64) -> ()'
