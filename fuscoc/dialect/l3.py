"""L3, kernels: what one launch does, said so that a printer only has to print it.

A kernel is a function of i64 counts and addresses; ``l3_values`` has what computes inside. The body
of a ``fsc.path`` at this level is a list of launches and network hops.
"""

from fuscoc.dialect import l3_values
from fuscoc.dialect.attrs import Array, Integer, Record, Ref, Text, VerifyError, attributes
from fuscoc.dialect.base import I64, Op, entry_block, ops_of
from fuscoc.dialect.dtypes import DType
from fuscoc.dialect.l0 import shuffle_of
from fuscoc.dialect.l2 import COPIES, HOLDERS, REDUCED, Step, check_held
from fuscoc.dialect.l3_values import require
from fuscoc.dialect.mlir import ext, ir
from fuscoc.dialect.relation import Apart

__all__ = ["l3_values"]

# What a kernel argument is: a count, an int64 column of a descriptor list, any other address.
ARGUMENT_KINDS = ("scalar", "column", "address")


def _check_body(op, num):
    arguments = entry_block(op, 0).arguments
    if [str(argument.type) for argument in arguments] != ["i64"] * num:
        raise VerifyError(f"needs {num} i64 arguments in its body")


class Kernel(Op, name="kernel", traits=[ir.IsIsolatedFromAboveTrait, ir.NoTerminatorTrait]):
    """One kernel. Its body has one i64 argument for each of ``args``.

    ``value`` names what a launch passes; ``element`` is the type of the array at an address, and
    absent for raw memory (rows of a field, a signal window).

    ::

        "fsc.kernel"() ({
        ^bb0(%num_descriptors: i64, %src_offset: i64, %dst_row: i64, %x_src: i64, %x_dst: i64):
          "fsc.for_each_descriptor"(%num_descriptors) ({ ... }) : (i64) -> ()
        }) {args = [{kind = "scalar", name = "num_descriptors", value = "num_descriptors"},
            {element = i64, kind = "column", name = "src_offset", value = "src_offset"}, ...],
            num_warps = 4 : i64, sym_name = "moe_pack"} : () -> ()
    """

    attrs = attributes(
        sym_name=Text(),
        args=Array(
            Record(
                {
                    "name": Text(),
                    "kind": Text(*ARGUMENT_KINDS),
                    "value": Text(),
                    "element": DType(optional=True),
                }
            ),
            distinct=True,
        ),
        num_warps=Integer(1),
    )
    body: ext.Region

    @classmethod
    def check(cls, op):
        names = [arg["name"] for arg in op.read("args")]
        if len(set(names)) != len(names):
            raise VerifyError("must not give two arguments one name")
        for arg in op.read("args"):
            if arg["kind"] == "column" and arg["element"] != "i64":
                raise VerifyError(f"needs i64 elements in the column '{arg['name']}'")
            if arg["kind"] == "scalar" and arg["element"] is not None:
                raise VerifyError(f"must not give elements to the scalar '{arg['name']}'")

    @classmethod
    def check_regions(cls, op):
        _check_body(op, len(op.read("args")))
        if ops_of(op, Apart) and shuffle_of(op).read("relation_kernel") != op.read("sym_name"):
            raise VerifyError("must not say of segments what the relation's kernel says")


class Launch(Step, name="launch"):
    """Run a kernel over a descriptor list, which takes rows from ``src`` to ``dst``.

    ``bind`` says which argument is which field of them (of ``peers.dst``: a table of the peers'
    addresses), or the ``weights`` of the rows.

    ``%sent = "fsc.launch"() {bind = [{arg = "x_src", buffer = "source.x", dtype = bf16},
    {arg = "x_dst", buffer = "peers.target.x", dtype = bf16}], dst = "target", kernel = @moe_send,
    list = @direct, signal = 0 : i64, src = "source"} : () -> !fsc.token``
    """

    attrs = attributes(
        kernel=Ref("kernel"),
        list=Ref("descriptors"),
        src=Text(*HOLDERS),
        dst=Text(*HOLDERS),
        bind=Array(Record({"arg": Text(), "buffer": Text(), "dtype": DType()}), distinct=True),
        signal=Integer(0, optional=True),
        wait=Array(Integer(0), optional=True, distinct=True),
    )

    @classmethod
    def check(cls, op):
        kernel, held = op.follow("kernel"), op.follow("list")
        check_held(op, held, COPIES | REDUCED)
        if len(ops_of(kernel, Signal)) != (op.signals is not None):
            raise VerifyError("needs a signal exactly where its kernel sends one")
        waits = {wait.read("slot") for wait in ops_of(kernel, Wait)}
        if waits != set(op.waits):
            raise VerifyError(f"waits for {[*op.waits]}, and its kernel for {sorted(waits)}")
        args = {arg["name"]: arg for arg in kernel.read("args")}
        for bound in op.read("bind"):
            if bound["arg"] not in args:
                raise VerifyError(f"binds '{bound['arg']}', which its kernel does not take")
            buffer, _, field = bound["buffer"].removeprefix("peers.").partition(".")
            if (
                not field
                or "." in field
                or buffer not in (op.read("src"), op.read("dst"), "weights", "numbers")
            ):
                raise VerifyError(f"binds '{bound['buffer']}', to which it brings no rows")
        columns = {*held.read("columns"), *held.read("terms")}
        for arg in args.values():
            if arg["kind"] == "column" and arg["value"] not in columns:
                raise VerifyError(f"passes a list without the column '{arg['value']}'")


class ForEachDescriptor(Op, name="for_each_descriptor", traits=[ir.NoTerminatorTrait]):
    """The body for every index below ``count``, divided among the programs of the launch.

    ``"fsc.for_each_descriptor"(%num_descriptors) ({ ^bb0(%i: i64): ... }) : (i64) -> ()``
    """

    count: ext.Operand[I64]
    body: ext.Region

    @classmethod
    def check_regions(cls, op):
        _check_body(op, 1)


class ForEachPoint(Op, name="for_each_point", traits=[ir.NoTerminatorTrait]):
    """The body for every index below ``count``, ``block`` at a time, one a lane.

    ``"fsc.for_each_point"(%num_points) ({ ^bb0(%point: i64): ... }) {block = 1024 : i64} : (i64) ->
    ()``
    """

    attrs = attributes(block=Integer(1))
    count: ext.Operand[I64]
    body: ext.Region

    @classmethod
    def check_regions(cls, op):
        _check_body(op, 1)


class ForChunks(Op, name="for_chunks", traits=[ir.NoTerminatorTrait]):
    """The body for every multiple of ``step`` below ``limit``: rows longer than one tile.

    ``"fsc.for_chunks"() ({ ^bb0(%start: i64): ... }) {limit = 65536 : i64, step = 4096 : i64} : ()
    -> ()``
    """

    attrs = attributes(limit=Integer(1), step=Integer(1))
    body: ext.Region

    @classmethod
    def check(cls, op):
        if op.read("limit") % op.read("step"):
            raise VerifyError("must end at a multiple of its step")

    @classmethod
    def check_regions(cls, op):
        _check_body(op, 1)


class ForTerms(Op, name="for_terms", traits=[ir.NoTerminatorTrait]):
    """The body for every term from ``begin`` to ``end`` of one descriptor, in order.

    ``"fsc.for_terms"(%begin, %end) ({ ^bb0(%term: i64): ... }) : (i64, i64) -> ()``
    """

    begin: ext.Operand[I64]
    end: ext.Operand[I64]
    body: ext.Region

    @classmethod
    def check_regions(cls, op):
        _check_body(op, 1)


def _check_place(op):
    """Every program of a launch signals and waits once, however much work it has."""
    if op.operation.parent.name != Kernel.OPERATION_NAME:
        raise VerifyError("must stand directly inside fsc.kernel")


class Wait(Op, name="wait"):
    """Wait until every peer has signalled ``slot`` often enough; returns how much work to do.

    That is ``count``, or 0 if a word is still behind when the one at ``abort`` is not 0: then that
    at ``late`` says which. Counts may wrap: only their difference is compared.

    ``%num = "fsc.wait"(%wait_base, %num_peers, %expected_0, %abort, %late, %count)
    {slot = 0 : i64} : (i64, i64, i64, i64, i64, i64) -> i64``
    """

    attrs = attributes(slot=Integer(0))
    window: ext.Operand[I64]
    num_peers: ext.Operand[I64]
    expected: ext.Operand[I64]
    abort: ext.Operand[I64]
    late: ext.Operand[I64]
    count: ext.Operand[I64]
    result: ext.Result[I64] = ext.infer_result()

    @classmethod
    def check(cls, op):
        _check_place(op)
        require(op.abort, "i32", "the abort word")
        require(op.late, "i32", "the late word")


class Signal(Op, name="signal"):
    """Tell every peer that all stores of this program are visible to it.

    ``"fsc.signal"(%signals, %signal_slot, %num_peers, %my_peer) : (i64, i64, i64, i64) -> ()``
    """

    windows: ext.Operand[I64]
    slot: ext.Operand[I64]
    num_peers: ext.Operand[I64]
    my_peer: ext.Operand[I64]

    @classmethod
    def check(cls, op):
        _check_place(op)
        require(op.windows, "i64", "the peers' windows")
