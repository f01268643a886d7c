"""L3 operations: what their verifiers refuse, and that modules survive being text."""

from __future__ import annotations

import pytest

from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l2 import GatherSend, Reduce, ScatterRecv
from fuscoc.dialect.l3 import Kernel, Launch
from fuscoc.pipeline import compile_to_ir
from tests.codegen.kernel_texts import ARGS, BLOCK, SIGNAL, in_loop, kernel_of
from tests.codegen.specs import SPECS
from tests.dialect.support import PRELUDE, error_of, round_trips


def kernel(body: str, args: str = ARGS, block: str = BLOCK) -> str:
    """A module with one kernel around ``body``."""
    return PRELUDE + kernel_of("k", body, args, block)


ROW = """%row = "fsc.row_at"(%m, %n) {align = 16 : i64, step_bytes = 32 : i64} :
    (i64, i64) -> !fsc.row<f32>
  %at = "fsc.lanes"(%zero) : (i64) -> vector<8xi64>
  """
ACCESS = "operandSegmentSizes = array<i32: 1, 1, {}>"


def load(attributes: str = "", strides: int = 0, lanes: int = 8, element: str = "f32") -> str:
    """Load a row of ``%row`` with the attributes given."""
    operands = ", ".join(["%row", "%at", *["%n"] * strides])
    types = ", ".join(["!fsc.row<f32>", "vector<8xi64>", *["i64"] * strides])
    return (
        f'{ROW}%x = "fsc.load_row"({operands}) {{{attributes}'
        f"{ACCESS.format(strides)}}} : ({types}) -> vector<{lanes}x{element}>"
    )


HELD = '%held = "fsc.hold"() : () -> !fsc.held_row<vector<8xf32>>\n  '

GOOD = {
    "empty": "",
    "load": load(),
    "masked": load("limit = 5 : i64, "),
    "runs": load("counts = [2, 3], limit = 6 : i64, run = 1 : i64, ", strides=2),
    "number": '%x = "fsc.load_scalar"(%w, %n) : (i64, i64) -> bf16',
    "loop": '"fsc.for_each_descriptor"(%n) ({ ^bb0(%i: i64): }) : (i64) -> ()',
    "sum": load() + f'\n  {HELD}"fsc.accumulate"(%held, %x) : (!fsc.held_row<vector<8xf32>>, '
    "vector<8xf32>) -> ()",
    "quantised": load()
    + """
  %amax = "fsc.amax"(%x) {block = 4 : i64} : (vector<8xf32>) -> vector<2xf32>
  %scales = "fsc.scale_of"(%amax) {dtype = f8E4M3FN} : (vector<2xf32>) -> vector<2xf32>
  %factors = "fsc.factor_of"(%amax) {dtype = f8E5M2} : (vector<2xf32>) -> vector<2xf32>
  %scaled = "fsc.scale"(%x, %factors) : (vector<8xf32>, vector<2xf32>) -> vector<8xf32>
  %narrow = "fsc.cast"(%scaled) : (vector<8xf32>) -> vector<8xf8E4M3FN>""",
}

BAD = {
    "desc_field of memory": (
        '%x = "fsc.desc_field"(%m, %n) : (i64, i64) -> i64',
        "needs an array of i64 for its column",
    ),
    "desc_field of a result": (
        '%x = arith.addi %n, %n : i64\n %y = "fsc.desc_field"(%x, %n) : (i64, i64) -> i64',
        "must read an array that is an argument of its kernel",
    ),
    "load_scalar widened": (
        '%x = "fsc.load_scalar"(%w, %n) : (i64, i64) -> f32',
        "must not read bf16 as f32",
    ),
    "load_scalar of memory": (
        '%x = "fsc.load_scalar"(%m, %n) : (i64, i64) -> i64',
        "must read an array, not untyped memory",
    ),
    "store_scalar of floats": (
        '"fsc.store_scalar"(%w, %n, %n) : (i64, i64, i64) -> ()',
        "needs an array of i64 for its output",
    ),
    "lanes": (
        '%x = "fsc.lanes"(%zero) : (i64) -> vector<6xi64>',
        "needs a power of two of i64 lanes",
    ),
    "load_row of another type": (load(element="f16"), "needs one element of its row a lane"),
    "load_row of more lanes": (load(lanes=16), "needs one element of its row a lane"),
    "load_row without strides": (
        load("counts = [2], run = 4 : i64, "),
        "needs a run length, and a stride for each of its counts",
    ),
    "load_row without run": (load("counts = [2], ", strides=1), "needs a run length"),
    "load_row beyond its runs": (
        load("counts = [2], limit = 5 : i64, run = 3 : i64, ", strides=1),
        "must end where its runs end",
    ),
    "accumulate of another type": (
        f'{HELD}%z = arith.constant dense<0.0> : vector<4xf32>\n "fsc.accumulate"(%held, %z) : '
        "(!fsc.held_row<vector<8xf32>>, vector<4xf32>) -> ()",
        "must not mix vector<8xf32> and vector<4xf32>",
    ),
    "accumulate in no row": (
        f'{load()}\n "fsc.accumulate"(%n, %x) : (i64, vector<8xf32>) -> ()',
        "'fsc.accumulate' op has operands, results or attributes of other types than it is defined",
    ),
    "hold of a number": (
        '%x = "fsc.hold"() : () -> !fsc.held_row<f32>',
        "needs a vector, not f32",
    ),
    "cast of integers": (
        load().replace("f32", "i32") + '\n %y = "fsc.cast"(%x) : (vector<8xi32>) -> vector<8xi64>',
        "must convert between floats, not i32",
    ),
    "scale by another type": (
        load() + '\n %f = "fsc.load_scalar"(%w, %n) : (i64, i64) -> bf16\n'
        '%y = "fsc.scale"(%x, %f) : (vector<8xf32>, bf16) -> vector<8xf32>',
        "needs a row and factors of one element type",
    ),
    "scale by blocks of no length": (
        load() + "\n %f = arith.constant dense<1.0> : vector<3xf32>\n"
        '%y = "fsc.scale"(%x, %f) : (vector<8xf32>, vector<3xf32>) -> vector<8xf32>',
        "needs a row and factors of one element type",
    ),
    "amax of another number of blocks": (
        load() + '\n %y = "fsc.amax"(%x) {block = 4 : i64} : (vector<8xf32>) -> vector<4xf32>',
        "needs one f32 for every 4 f32",
    ),
    "scales of another type": (
        load() + '\n %y = "fsc.scale_of"(%x) {dtype = bf16} : (vector<8xf32>) -> vector<8xf32>',
        "must be one of f8e4m3, f8e5m2, not bf16",
    ),
    "factors of another number": (
        load() + '\n %y = "fsc.factor_of"(%x) {dtype = f8E5M2} : (vector<8xf32>) -> vector<4xf32>',
        "needs f32 and gives as many",
    ),
    "normalise by nothing": (
        load() + '\n %y = "fsc.normalise"(%x) : (vector<8xf32>) -> vector<8xf32>',
        "needs numbers of its own or of a call, and not both",
    ),
    "normalise by both": (
        load() + '\n %y = "fsc.normalise"(%x) {channels = 1 : i64, factors = [2.0 : f32], '
        "shifts = [0.0 : f32]} : (vector<8xf32>) -> vector<8xf32>",
        "needs numbers of its own or of a call, and not both",
    ),
    "normalise by numbers of another type": (
        load() + '\n %y = "fsc.normalise_by"(%x, %at, %w) {channels = 2 : i64} : '
        "(vector<8xf32>, vector<8xi64>, i64) -> vector<8xf32>",
        "needs an array of f32 for its numbers",
    ),
    "wait for a word elsewhere": (
        '%x = "fsc.wait"(%m, %n, %n, %m, %m, %n) {slot = 0 : i64} : '
        "(i64, i64, i64, i64, i64, i64) -> i64",
        "needs an array of i32 for the abort word",
    ),
    "signal without windows": (
        '"fsc.signal"(%m, %n, %n, %n) : (i64, i64, i64, i64) -> ()',
        "needs an array of i64 for the peers' windows",
    ),
    "wait in a loop": (
        in_loop(
            '%x = "fsc.wait"(%m, %n, %n, %m, %m, %n) {slot = 0 : i64} : '
            "(i64, i64, i64, i64, i64, i64) -> i64"
        ),
        "'fsc.wait' op must stand directly inside fsc.kernel",
    ),
    "signal in a loop": (
        in_loop(SIGNAL),
        "'fsc.signal' op must stand directly inside fsc.kernel",
    ),
    "signal in a loop of a loop": (
        '"fsc.for_chunks"() ({ ^bb0(%j: i64): '
        + in_loop(SIGNAL)
        + "}) {limit = 8 : i64, step = 4 : i64} : () -> ()",
        "'fsc.signal' op must stand directly inside fsc.kernel",
    ),
    "loop without index": (
        '"fsc.for_each_descriptor"(%n) ({ ^bb0: }) : (i64) -> ()',
        "needs 1 i64 arguments in its body",
    ),
    "chunks that do not end": (
        '"fsc.for_chunks"() ({ ^bb0(%i: i64): }) {limit = 10 : i64, step = 4 : i64} : () -> ()',
        "must end at a multiple of its step",
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_accepts(name: str) -> None:
    assert not error_of(kernel(GOOD[name]))


@pytest.mark.parametrize("name", BAD)
def test_refuses(name: str) -> None:
    body, message = BAD[name]
    assert message in error_of(kernel(body))


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (ARGS.replace('name = "m"', 'name = "n"'), "must not give two arguments one name"),
        (ARGS.replace("element = i64, ", ""), "needs i64 elements in the column 'c'"),
        (
            ARGS.replace('{kind = "scalar"', '{element = i64, kind = "scalar"'),
            "must not give elements to the scalar 'n'",
        ),
    ],
)
def test_refuses_arguments(args: str, message: str) -> None:
    assert message in error_of(kernel("", args))


def test_refuses_a_relation_beside_that_of_its_kernel() -> None:
    shuffle = PRELUDE.replace("ragged = 0 :", "relation_kernel = @k, ragged = 0 :")
    assert shuffle != PRELUDE
    reason = "'fsc.shuffle' op must not have a relation beside that of its kernel"
    assert reason in error_of(shuffle + kernel_of("k", "", ARGS, BLOCK))


def test_refuses_what_the_kernel_of_a_relation_says_in_another_one() -> None:
    reason = "'fsc.kernel' op must not say of segments what the relation's kernel says"
    assert reason in error_of(kernel('"fsc.apart"() : () -> ()'))


def test_refuses_another_number_of_arguments() -> None:
    assert "needs 4 i64 arguments in its body" in error_of(kernel("", block="%n: i64"))


@pytest.mark.parametrize("name", SPECS)
def test_lowered_modules(name: str) -> None:
    """Nothing of L2's steps is left, every launch has its kernel, and text is all there is."""
    lowered = compile_to_ir(SPECS[name]())
    assert round_trips(lowered.dumps["L3"])
    with lowered.module.context:
        paths = [op for op in lowered.module.body if op.operation.name == "fsc.path"]
        assert not [
            step for path in paths for step in ops_of(path, GatherSend, ScatterRecv, Reduce)
        ]
        launched = {launch.read("kernel") for path in paths for launch in ops_of(path, Launch)}
        kernels = {kernel.read("sym_name") for kernel in ops_of(lowered.module, Kernel)}
        shuffle = SPECS[name]().name
        assert kernels - launched <= {f"{shuffle}_relation", f"{shuffle}_extents"}
        assert launched <= kernels
