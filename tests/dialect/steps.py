"""Programs of steps over lists, for verifiers, and how these begin what they say."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tests.dialect.support import edited

# Steps without their types, which ``typed`` adds.
FORTH = """
"fsc.path"() ({
  "fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_row"], per = "node",
    sym_name = "net_send"} : () -> ()
  "fsc.descriptors"() {builder = "source", columns = ["src_offset", "dst_peer", "dst_slot"],
    per = "rank", sym_name = "direct"} : () -> ()
  "fsc.descriptors"() {builder = "forwarder", columns = ["src_row", "dst_peer", "dst_slot"],
    per = "rank", sym_name = "forward"} : () -> ()
  "fsc.descriptors"() {builder = "target", columns = ["src_slot", "dst_slot"], per = "point",
    sym_name = "local"} : () -> ()
  %packed = "fsc.gather_send"() {dst = "slices", list = @net_send, src = "source"} : TOKEN
  %landed = "fsc.exchange"(%packed) {forwarder = "static", schedule = "pairwise",
    slice_bytes = 1024 : i64} : TOKEN
  %sent = "fsc.gather_send"() {dst = "target", list = @direct, signal = 0 : i64,
    src = "source"} : TOKEN
  %forwarded = "fsc.gather_send"(%landed) {dst = "target", list = @forward, signal = 1 : i64,
    src = "landing"} : TOKEN
  %copied = "fsc.scatter_recv"(%sent, %forwarded) {list = @local, wait = [0, 1]} : TOKEN
}) {direction = "dispatch"} : () -> ()
"""
BACK = """
"fsc.path"() ({
  "fsc.descriptors"() {builder = "target",
    columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_forward",
    terms = ["term_slot", "term_point"]} : () -> ()
  "fsc.descriptors"() {builder = "target",
    columns = ["dst_peer", "dst_row", "term_begin", "term_end"], sym_name = "reduce_direct",
    terms = ["term_slot", "term_point"]} : () -> ()
  "fsc.descriptors"() {builder = "forwarder", columns = ["dst_row", "term_begin", "term_end"],
    sym_name = "reduce_node"} : () -> ()
  "fsc.descriptors"() {builder = "carrier", columns = ["src_row", "dst_peer", "dst_row"],
    sym_name = "hand_back"} : () -> ()
  "fsc.descriptors"() {builder = "source", columns = ["dst_offset", "term_begin", "term_end"],
    sym_name = "reduce_source", terms = ["term_row"]} : () -> ()
  %far = "fsc.reduce"() {dst = "forward_staging", kind = "sum", list = @reduce_forward,
    rows = [{acc = f32, dst = f32, name = "x", src = bf16}], signal = 3 : i64, src = "rows",
    weight = @spec.factors} : TOKEN
  %near = "fsc.reduce"() {dst = "staging", kind = "sum", list = @reduce_direct,
    rows = [{acc = f32, dst = bf16, name = "x", src = bf16}], signal = 2 : i64, src = "rows",
    weight = @spec.factors} : TOKEN
  %node = "fsc.reduce"(%far) {dst = "return_slices", kind = "sum", list = @reduce_node,
    rows = [{acc = f32, dst = bf16, name = "x", src = f32}], src = "forward_staging",
    wait = [3]} : TOKEN
  %back = "fsc.exchange"(%node) {} : TOKEN
  %handed = "fsc.gather_send"(%back) {dst = "staging", list = @hand_back,
    rows = [{dtype = bf16, name = "x"}], signal = 5 : i64, src = "returned"} : TOKEN
  %result = "fsc.reduce"(%near, %back, %handed) {dst = "result", kind = "sum",
    list = @reduce_source, rows = [{acc = f32, dst = bf16, name = "x", src = bf16}],
    src = "staging", wait = [2, 5]} : TOKEN
}) {direction = "combine"} : () -> ()
"""


def typed(text: str) -> str:
    """``text`` with the types of its steps, which it leaves out."""

    def types(step: re.Match[str]) -> str:
        tokens = ", ".join(["!fsc.token"] * step[1].count("%"))
        return f"{step[0].removesuffix('TOKEN')}({tokens}) -> !fsc.token"

    return re.sub(r'= "fsc\.\w+"\((.*?)\).*? : TOKEN', types, text, flags=re.DOTALL)


def refused(program: str, edits: Iterable[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """``program`` after one edit at a time, each with what verifiers say then."""
    return [(edited(program, (old, new)), reason) for old, new, reason in edits]


UNWEIGHED = edited(BACK, (",\n    weight = @spec.factors", ""))
COPIED = edited(UNWEIGHED, ('"sum"', '"copy"'), ("acc = f32, ", ""), ("f32", "bf16"))
# A rank sends rows for another.
CARRIED = edited(
    FORTH,
    (
        '  %packed = "fsc.gather_send"()',
        """  "fsc.descriptors"() {builder = "source",
    columns = ["src_offset", "dst_peer", "dst_row"], per = "node", sym_name = "carry"} : () -> ()
  "fsc.descriptors"() {builder = "carrier", columns = ["src_row", "dst_row"], per = "node",
    sym_name = "carried"} : () -> ()
  %given = "fsc.gather_send"() {dst = "carried", list = @carry, signal = 4 : i64,
    src = "source"} : TOKEN
  %more = "fsc.gather_send"(%given) {dst = "slices", list = @carried, src = "carried",
    wait = [4]} : TOKEN
  %packed = "fsc.gather_send"()""",
    ),
    ('"fsc.exchange"(%packed)', '"fsc.exchange"(%packed, %more)'),
    ('"static"', '"rebalance"'),
)
MORE = """\
%more = "fsc.gather_send"(%given) {dst = "slices", list = @carried, src = "carried",
    wait = [4]} : TOKEN
"""
# The network hop of a dispatch, and of a combine.
FAR = """%landed = "fsc.exchange"(%packed) {forwarder = "static", schedule = "pairwise",
    slice_bytes = 1024 : i64} : TOKEN"""
LOCAL = """\
"fsc.descriptors"() {builder = "target", columns = ["src_slot", "dst_slot"], per = "point",
    sym_name = "local"} : () -> ()
"""
BACK_FAR = '%back = "fsc.exchange"(%node) {} : TOKEN'
RESULT = """\
%result = "fsc.reduce"(%near, %back, %handed) {dst = "result", kind = "sum",
    list = @reduce_source, rows = [{acc = f32, dst = bf16, name = "x", src = bf16}],
    src = "staging", wait = [2, 5]} : TOKEN
"""

PATH = "'fsc.path' op "
SEND, SCATTER, REDUCE = "'fsc.gather_send' op ", "'fsc.scatter_recv' op ", "'fsc.reduce' op "
EXCHANGE, LISTED = "'fsc.exchange' op ", "'fsc.descriptors' op "
SIGNALLED = "needs a signal exactly where rows go to peers"
