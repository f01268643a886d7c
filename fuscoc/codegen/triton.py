"""fsc.kernel operations -> the text of a Triton module. It prints; every choice was made before.

The text runs compiled and under Triton's interpreter, where loop variables are Python integers.
It calls none of Triton's own jit functions, so that the interpreter may be switched on at any time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import fuscoc
from fuscoc.codegen.arguments import RESERVED
from fuscoc.codegen.triton_expressions import (
    HELPERS,
    Text,
    address,
    expression,
    pointer,
    tl,
    wrapped,
)
from fuscoc.dialect.base import ops_of
from fuscoc.dialect.l0 import shuffle_of
from fuscoc.dialect.l3 import (
    ForChunks,
    ForEachDescriptor,
    ForEachPoint,
    ForTerms,
    Kernel,
    Signal,
    Wait,
)
from fuscoc.dialect.l3_values import (
    Accumulate,
    DescField,
    Held,
    Hold,
    LoadRow,
    LoadScalar,
    PeerBase,
    Replace,
    StoreRow,
    StoreScalar,
    vector_of,
)
from fuscoc.dialect.mlir import ir
from fuscoc.dialect.relation import Apart
from fuscoc.source import SourceFile

INDENT = "    "
# Of a wait, between two looks at the host's memory; a power of two, as the count may wrap.
POLLS_PER_LOOK = 64
HEADER = '''"""Kernels of shuffle ``{shuffle}`` in {spec}, by fuscoc {version}. Do not edit.

Every argument is an int64, a count or an address; docs/abi.md of fuscoc describes them.
"""

import triton
import triton.language as tl
'''
_LOADS = (DescField, PeerBase, LoadScalar, LoadRow)


def triton_module(module: Any, source: SourceFile) -> str:
    """The text of all kernels of one shuffle's module, which must be at L3."""
    with module.context:
        kernels = ops_of(module, Kernel)
        shuffle = shuffle_of(kernels[0]).read("sym_name")
        header = HEADER.format(shuffle=shuffle, spec=source.plain_name, version=fuscoc.__version__)
        texts = [_Printer(kernel, source).print() for kernel in kernels]
        called = [n for n in HELPERS if any(f"{n}(" in text for text in texts)]
        helpers = [HELPERS[name] for name in called]
    return "\n\n".join([header, *helpers, *texts])


class _Names:
    """Python names, unique where they are visible."""

    def __init__(self, taken: frozenset[str]) -> None:
        self.scopes = [set(taken)]

    def new(self, wish: str) -> str:
        """A name like ``wish`` that nothing visible has."""
        name, number = wish, 0
        while any(name in scope for scope in self.scopes):
            number += 1
            name = f"{wish}_{number}"
        self.scopes[-1].add(name)
        return name

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Names from inside are free again behind it, as a loop's variables end with it."""
        self.scopes.append(set())
        yield
        self.scopes.pop()


class _Printer:
    """Prints one kernel."""

    def __init__(self, kernel: Any, source: SourceFile) -> None:
        self.kernel = kernel
        self.source = source
        self.arguments = kernel.read("args")
        names = frozenset(argument["name"] for argument in self.arguments)
        self.names = _Names(RESERVED | names)
        self.texts: dict[Any, Text] = {}
        self.lines: list[str] = []
        self.depth = 0
        self.live: str | None = None  # mask of the lanes that have a point
        self.polls = self.in_vain = ""  # of this kernel's waits: how many, and whether they are

    def print(self) -> str:
        self.head()
        self.depth = 1
        block = self.kernel.body.blocks[0]
        for argument, value in zip(self.arguments, block.arguments, strict=True):
            name, element = argument["name"], argument["element"]
            cast = f".to({pointer(element)})" if element is not None else ""
            self.line(f"{name} = {name}.to(tl.int64){cast}")
            self.texts[value] = Text(name)
        self.block(block)
        return "\n".join(self.lines) + "\n"

    def head(self) -> None:
        location = self.kernel.location
        file = self.source.plain_name
        if isinstance(location, ir.FileLineColLoc) and location.filename == file:
            lines = range(location.start_line, location.end_line + 1)
            self.lines += self.source.quoted(lines, "#")
        self.line(f"@triton.jit(do_not_specialize=range({len(self.arguments)}))")
        name = self.kernel.read("sym_name")
        parameters = [f"{argument['name']}: tl.int64" for argument in self.arguments]
        self.line(f"def {name}({', '.join(parameters)})")
        self.lines[-1] += ":"

    def line(self, text: str) -> None:
        self.lines += wrapped(INDENT * self.depth, text)

    @contextmanager
    def indented(self, opening: str) -> Iterator[None]:
        self.line(opening)
        self.depth += 1
        with self.names.scope():
            yield
        self.depth -= 1

    def block(self, block: Any) -> None:
        for op in block.operations:
            self.statement(op)

    def text(self, value: Any) -> Text:
        """The expression of a value: its variable, or the operation that computes it."""
        if value not in self.texts:
            self.texts[value] = expression(value.owner.opview, self.text)
        return self.texts[value]

    def statement(self, op: Any) -> None:
        match op:
            case ForEachDescriptor():
                self.for_each_descriptor(op)
            case ForEachPoint():
                self.for_each_point(op)
            case ForChunks():
                self.loop(op, f"range(0, {op.read('limit')}, {op.read('step')})")
            case ForTerms():
                self.loop(op, f"range({self.text(op.begin).text}, {self.text(op.end).text})")
            case Wait():
                self.wait(op)
            case Signal():
                self.signal(op)
            case Hold():
                dtype, size = vector_of(op.result)
                self.bind(op.result, f"tl.full(({size},), 0, {tl(dtype)})")
            case Accumulate():
                self.line(f"{self.text(op.held).text} += {self.text(op.value).text}")
            case Replace():
                self.line(f"{self.text(op.held).text} = {self.text(op.value).text}")
            case StoreRow():
                where = address(op, self.text(op.row).text, self.text(op.lanes), self.text)
                place, _, mask = where.partition(", mask=")
                mask = f", mask={mask}" if mask else ""
                self.line(f"tl.store({place}, {self.text(op.value).text}{mask})")
            case StoreScalar():
                where = f"{self.text(op.array).text} + {self.text(op.index).inside(4)}"
                self.line(f"tl.store({where}, {self.text(op.value).text}, mask={self.live})")
            case Apart():
                pass  # the engine looks at what is stored here
            case _:
                if not self.inline(op):
                    self.bind(op.operation.result, expression(op, self.text).text)

    def inline(self, op: Any) -> bool:
        """Whether an operation's expression stands where it is used, without a variable."""
        if op.operation.name == "arith.constant" or isinstance(op, Held):
            return True
        uses = list(op.operation.result.uses)
        if len(uses) != 1 or uses[0].owner.operation.block != op.operation.block:
            return False
        if isinstance(op, LoadRow):
            return isinstance(uses[0].owner.opview, Replace)
        return not isinstance(op, _LOADS) and not isinstance(op.location, ir.NameLoc)

    def bind(self, value: Any, text: str) -> str:
        """Give a value a variable."""
        name = self.names.new(self.wish(value.owner))
        self.texts[value] = Text(name)
        self.line(f"{name} = {text}")
        return name

    def wish(self, op: Any) -> str:
        """A good name for the result of an operation."""
        view, wish = op.opview, "value"
        if isinstance(view, LoadScalar):
            index = self.text(view.index).text
            wish = f"{self.text(view.array).text}_{index if index.isidentifier() else 'value'}"
        elif isinstance(view, Wait):
            wish = "count"
        return _label(op.location, wish)

    def loop(self, op: Any, over: str) -> None:
        (index,) = op.body.blocks[0].arguments
        name = self.names.new(_label(index.location, "i"))
        self.texts[index] = Text(name)
        with self.indented(f"for {name} in {over}:"):
            self.block(op.body.blocks[0])

    def for_each_descriptor(self, op: Any) -> None:
        count = self.text(op.count).text
        self.loop(op, f"range(tl.program_id(0), {count}, tl.num_programs(0))")

    def for_each_point(self, op: Any) -> None:
        count, block = self.text(op.count), op.read("block")
        (index,) = op.body.blocks[0].arguments
        start, lane = self.names.new("start"), self.names.new("lane")
        self.live = self.names.new("live")
        name = self.names.new(_label(index.location, "point"))
        self.texts[index] = Text(name)
        first, step = f"tl.program_id(0) * {block}", f"tl.num_programs(0) * {block}"
        with self.indented(f"for {start} in range({first}, {count.text}, {step}):"):
            self.line(f"{lane} = {start} + tl.arange(0, {block}).to(tl.int64)")
            self.line(f"{self.live} = {lane} < {count.text}")
            self.line(
                f"{name} = tl.minimum({lane}, {count.text} - 1)  # idle lanes repeat the last one"
            )
            self.block(op.body.blocks[0])
        self.live = None

    def wait(self, op: Any) -> None:
        window, num_peers, expected, abort, late, given = (
            self.text(operand).text for operand in op.operands
        )
        slot = op.read("slot")
        self.line(f"# Wait until every peer has signalled slot {slot}, or the host says: in vain.")
        if isinstance(op.count.owner, ir.Block):
            self.bind(op.result, given)
            self.polls, self.in_vain = map(self.names.new, ("polls", "in_vain"))
            self.line(f"{self.polls} = 0")
            self.line(f"{self.in_vain} = 0")
        else:  # the second of two waits goes on counting
            self.texts[op.result] = Text(given)
        count, polls, in_vain = self.text(op.result).text, self.polls, self.in_vain
        with self.names.scope():
            peer, index, word, behind = map(self.names.new, ("peer", "index", "word", "behind"))
            # What others write is known from atomics alone, whose result is the same in every
            # thread. The host's memory has none, and is far away: now and then the late word takes
            # over what one thread has read there, and the next look finds it.
            poll = (
                f"{behind} = {expected}.to(tl.int32) - "
                f'tl.atomic_add({word}, 0, sem="acquire", scope="sys")'
            )
            with self.indented(f"for {peer} in range({num_peers}):"):
                self.line(f"{index} = {slot} * {num_peers} + {peer}")
                self.line(f"{word} = ({window} + {index} * 4).to({pointer('i32')})")
                self.line(poll)
                with self.indented(f"while ({behind} > 0) & ({in_vain} == 0):"):
                    self.line(f"{polls} += 1")
                    with self.indented(f"if {polls} % {POLLS_PER_LOOK} == 0:"):
                        stop = self.names.new("stop")
                        self.line(f"{stop} = tl.load({abort}, volatile=True)")
                        name = f"({index} + 1).to(tl.int32) * {stop}"
                        self.line(f'{in_vain} = tl.atomic_cas({late}, 0, {name}, sem="relaxed")')
                    self.line(poll)
                with self.indented(f"if {behind} > 0:"):
                    self.line(f"{count} *= 0")

    def signal(self, op: Any) -> None:
        windows, slot, num_peers, me = (self.text(operand).text for operand in op.operands)
        self.line("# The stores of every thread come first.")
        self.line("tl.debug_barrier()")
        peer, window, word = map(self.names.new, ("peer", "window", "word"))
        with self.indented(f"for {peer} in range({num_peers}):"):
            self.line(f"{window} = tl.load({windows} + {peer})")
            index = f"({slot} * {num_peers} + {me}) * 4"
            self.line(f"{word} = ({window} + {index}).to({pointer('i32')})")
            self.line(f'tl.atomic_add({word}, 1, sem="release", scope="sys")')


def _label(location: Any, default: str) -> str:
    """The name that a location carries."""
    return str(location.name_str) if isinstance(location, ir.NameLoc) else default
