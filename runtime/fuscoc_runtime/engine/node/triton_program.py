"""The Triton kernels of a shuffle inside one node, loaded, and what their launches are given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
import triton.language as tl
from torch import Tensor

from fuscoc_runtime.comm.group import Membership
from fuscoc_runtime.engine.node.rings import Launched
from fuscoc_runtime.engine.node.schedule import Programs, model_programs
from fuscoc_runtime.engine.node.state import bits_of_cells
from fuscoc_runtime.kernels.commands import Command, CommandList, Launch
from fuscoc_runtime.kernels.loader import Kernel, address, device_module
from fuscoc_runtime.kernels.stored import kernel_of, own_kernel
from fuscoc_runtime.kernels.traced import command_list, traced
from fuscoc_runtime.manifest.artifact import Artifact
from fuscoc_runtime.manifest.schema import NodeSpec, ShuffleSpec
from fuscoc_runtime.plan import key_to_rank
from fuscoc_runtime.room import LEAST, num_slot_bits, room_for

COMBINED = ("rows", "result", "result_bytes")
"""What a combine is given of every field."""

OF_FEW = "_few"
"""Behind a kernel's role where it is for few SMs."""
INSIDE = "count", "sort", "dispatch", "combine", "lend"
ACROSS = "exchange_landed", "assign_landed", "pack", "forward", "collect", "finish"
"""Kernels that take the place of these where there are several nodes."""


def numbered(groups: Tensor) -> Tensor:
    """int64, of each how many before it are of its group."""
    order = groups.argsort(stable=True)
    inside = groups[order]
    numbers = torch.empty_like(order)
    places = torch.arange(len(order), device=groups.device)
    numbers[order] = places - torch.searchsorted(inside, inside)
    return numbers


class TritonProgram:
    """What does not depend on how large calls are; one rank's.

    Attributes:
        kernels: by what they do, those of several nodes only if there are.
        rank, num_ranks: of this node; its ``node`` is one of ``num_nodes``.
        num_known: ranks of all nodes, or more, of which troubles are counted.
        room: ranks of this node that kernels have room for.
        interpreted: on the CPU, one program at a time.
        is_dense, is_compact, combines: what kind of shuffle it is.
        num_keys: that planning counts rows of; of several nodes those of this one.
        node_keys: of several nodes, the number of every key in the node that it is of.
        table: the input that says where keys live, if one does.
        row_bytes: of a row of every field of the target.
    """

    def __init__(
        self,
        artifact: Artifact,
        shuffle: ShuffleSpec,
        spec: NodeSpec,
        members: Membership,
        lends: bool = False,
        few: bool = False,
    ) -> None:
        """``lends``: with the kernel of results that may be lent; ``few``: with those of few SMs,
        in place of others that do the same."""
        self.shuffle, self.spec, self.members, self._artifact = shuffle, spec, members, artifact
        topology = members.topology
        self.device, self.num_ranks = members.device, topology.ranks_per_node
        self.rank, self.num_nodes = topology.local_rank(members.rank), topology.num_nodes
        self.node, self.num_known = topology.node(members.rank), max(LEAST, topology.num_ranks)
        self.room = room_for(self.num_ranks)
        self.interpreted = members.device.type == "cpu"
        program = shuffle.program
        self.target, self.is_compact = program.target, program.is_compact
        self.is_dense = program.target.kind == "dense"
        self.table = None if program.target.kind == "dense" else program.target.placement.table
        self.combines = spec.combines
        unused = {*(ACROSS if self.num_nodes == 1 else INSIDE)}
        if not lends:
            unused.add("lend")
        of_few = {role for role in spec.kernels if role.endswith(OF_FEW)}
        unused |= {role.removesuffix(OF_FEW) for role in of_few} if few else of_few
        if "sort" in spec.kernels and self.num_nodes > 1:
            unused.add("exchange")
        roles = spec.kernels.keys() - unused
        loaded = {role: self._load(spec.kernels[role]) for role in sorted(roles)}
        self.kernels = {role.removesuffix(OF_FEW): each for role, each in loaded.items()}
        self._resident = self.kernels["sort"].resident if self.sorts else 0
        relation = program.relation.kernel
        is_fused = self.sorts or spec.pieces is not None or self._packs()
        self.relation = None if is_fused else self._load(relation)
        self._refuse = self.load("refuse", "refuse", ("call", "ticket", "columns", "blocks"))
        for kernel in (self.relation, *self.kernels.values()):
            if kernel is not None:
                kernel.compile()
        self._fields = program.buffers["target"]
        self.row_bytes = [field.num_bytes for field in self._fields]
        self._key_to_rank: Tensor | None = None
        self.num_keys = self.target.num_keys if self.target.kind == "packed" else 1
        self.node_keys = self._node_owners = torch.empty(0, dtype=torch.int64)
        if self.target.kind == "packed" and self.table is None:
            self._key_to_rank = owners = key_to_rank(
                self.target, topology, members.rank, {}, self.device
            )
            if self.num_nodes > 1:
                nodes = owners // self.num_ranks
                self.node_keys, self._node_owners = numbered(nodes), owners[nodes == self.node]
                self.num_keys = len(self._node_owners)
        elif self.table is not None:  # it may change: any key can be of any node
            self.node_keys = torch.arange(self.num_keys, device=members.device)

    def model(self, num_sms: int | None, combine_an_sm: int = 4) -> Programs:
        """How calls use ``num_sms`` SMs. Pieces are as long as tiles say, and what crosses nodes
        has places in groups of its own."""
        if self.spec.pieces is not None:
            return model_programs(self.device, num_sms, combine_an_sm)
        if self.num_nodes > 1:
            row_warps = self.spec.tile["row_warps"]
            return model_programs(self.device, num_sms, combine_an_sm, row_warps=row_warps)
        row_bytes = sum(self.row_bytes) * self.spec.tile["tile_rows"]
        fanout = self.shuffle.program.fanout
        return model_programs(self.device, num_sms, combine_an_sm, row_bytes, fanout)

    def load(self, module: str, name: str, arguments: Sequence[str]) -> Kernel:
        """A device function that is a kernel by itself, compiled."""
        kernel = own_kernel(
            self._artifact,
            module,
            name,
            arguments,
            interpreted=self.interpreted,
            room=self.room,
        )
        kernel.compile()
        return traced(kernel, self.members.tracer)

    def listed(self, commands: Sequence[Command], varied: Sequence[str] = ()) -> CommandList:
        """Commands for the current stream of the device; see `CommandList`."""
        return command_list(self.device, commands, varied, self.members.tracer)

    @property
    def num_columns(self) -> int:
        """What planning counts rows of: every key and, for a compact target, every rank; or what
        ranks tell of a dense one: their slots."""
        return self.num_keys + (self.room if self.is_compact else 0)

    @property
    def padded_columns(self) -> int:
        """The same with what is behind them: texts count with the fewest ranks, and device/plan.py
        makes room for more."""
        keys = self.spec.padded_keys
        return 2 * max(keys, self.room) if self.is_compact and self.room > LEAST else keys

    @cached_property
    def word_places(self) -> dict[str, int]:
        """Where tables of calls have their words, by name; see kernels/device/words.py."""
        named = vars(device_module("words", interpreted=self.interpreted, room=self.room))
        constants = {name: each for name, each in named.items() if isinstance(each, tl.constexpr)}
        return {name.lower(): each.value for name, each in constants.items()}

    @property
    def most_slots(self) -> int:
        """Of a rank, that slot codes can tell."""
        return (1 << num_slot_bits(self.room)) - 1

    @property
    def place(self) -> str:
        """What the relation says of a point beside its rank."""
        return "slot" if self.is_dense else "key"

    @property
    def sorts(self) -> bool:
        """Whether one kernel assigns slots and moves rows, sorted by key, and another one
        evaluates the relation and counts: inside a node."""
        return self.num_nodes == 1 and "sort" in self.spec.kernels

    @property
    def point_bytes(self) -> int:
        """Of what ranks of the node tell each other of a point."""
        return self.spec.point_bytes(self.num_nodes)

    @property
    def plan_blocks(self) -> int:
        """What counts are exchanged in: blocks of keys, of each node."""
        return max(1, -(-self.num_columns // self.spec.key_block)) * self.num_nodes

    def bits_of_cells(self, source: Sequence[Tensor]) -> Tensor | None:
        """What a dispatch whose segments must lie apart marks source cells in, ``begun``: it has to
        live until all is launched."""
        program = self.shuffle.program
        if not program.relation.apart:
            return None
        return bits_of_cells(source[0], program.runs[0].cell_elems)

    def given(self, inputs: Sequence[Tensor], extents: Sequence[int]) -> dict[str, int]:
        """The relation's inputs and extents, by the manifest's value names."""
        tensors = zip(self.shuffle.program.inputs, inputs, strict=True)
        return {
            **{f"input.{name}": address(tensor) for name, tensor in tensors},
            **self.sizes_given(extents),
            **self.placement,
        }

    def sizes_given(self, extents: Sequence[int]) -> dict[str, int]:
        """The extents alone."""
        named, num_ranks = self.shuffle.program.extents, self.members.topology.num_ranks
        return {
            **{f"extent.{name}": size for name, size in zip(named, extents, strict=True)},
            "extent.rank": self.members.rank,
            "extent.ranks": num_ranks,
            "num_ranks": num_ranks,
        }

    @property
    def placement(self) -> dict[str, int]:
        """Where keys live, unless an input says so."""
        owners = self._key_to_rank
        if owners is None:
            return {}
        given = {"key_to_rank": address(owners)}
        return given if self.num_nodes == 1 else given | {"node_owners": address(self._node_owners)}

    @property
    def named(self) -> dict[str, str]:
        """Arguments of launches that take the number of another name: of an input that places
        keys."""
        return {} if self.table is None else {"key_to_rank": f"input.{self.table}"}

    def fields_sent(self, source: Sequence[Tensor], rows_at: Sequence[int]) -> dict[str, int]:
        """What a dispatch is given of every field: its tensor, and where rows go in a window."""
        return self.fields_left(source) | self.rows_there(rows_at)

    def fields_left(self, source: Sequence[Tensor]) -> dict[str, int]:
        """The tensors alone, and behind them numbers for fields of casts."""
        return dict(zip(self.shuffle.program.read, map(address, source), strict=True))

    def rows_there(self, rows_at: Sequence[int]) -> dict[str, int]:
        """Where rows go alone."""
        arriving = zip(self._fields, rows_at, strict=True)
        return {f"rows_at.{field.name}": at for field, at in arriving}

    def fields_back(self, rows: Sequence[Tensor], results: Sequence[Tensor]) -> dict[str, int]:
        """What a combine is given of every field; of none where this rank does not join it."""
        values = {}
        fields = self.shuffle.program.buffers["source"]
        for field, tensor, result in zip(fields, rows, results, strict=True):
            values[f"rows.{field.name}"] = address(tensor)
            values[f"result.{field.name}"] = address(result)
            values[f"result_bytes.{field.name}"] = result.nbytes
        return values

    def evaluating(self) -> list[Launch]:
        """The relation, with the numbers that `points` has; nothing if planning evaluates it."""
        if self.relation is None:
            return []
        return [Launch(self.relation, "relation_programs", self.named)]

    def points(self, num_sources: int) -> dict[str, int]:
        """The points of so many source segments, and programs that evaluate them."""
        program = self.shuffle.program
        num_points = num_sources * program.fanout
        programs = -(-num_points // program.relation.block)
        return {"num_points": num_points, "relation_programs": programs}

    def planning(self, sizes: Mapping[str, int]) -> list[Launch]:
        """The planner, with the numbers that `sizes` has. Between nodes a kernel comes early unless
        it has more programs than this rank's share of the GPU: that before it waits for peers, and
        where ranks share a GPU what it waits for could find no room beside such a one."""
        programs = {"count": "tiles", "exchange": "exchanging", "assign": "tiles"}
        if self.num_nodes > 1:  # who has sent segments has counted them
            del programs["count"]
        if self.is_dense:
            programs = {"exchange": "exchanging", "place": "tiles"}
        elif self.sorts:
            programs = {"count": "sorting", "exchange": "plan_blocks"}
        elif "sort" in self.spec.kernels:
            programs = {"exchange_landed": "exchanging", "assign_landed": "tiles"}
        told = {"programs": "sorting", **self.named}  # those whose counts are exchanged
        between = self.num_nodes > 1
        if between and self.table is None:
            told["key_to_rank"] = "node_owners"
        most = sizes["programs"] if between else 0
        return [
            Launch(self.kernels[role], number, told, follows=sizes[number] <= most)
            for role, number in programs.items()
        ]

    def moving(self) -> Launch:
        """What moves the rows of a dispatch that has been planned, with the numbers of `sizes`."""
        if self.sorts:
            return Launch(self.kernels["sort"], "sorting", self.named)
        return Launch(self.kernels["dispatch"], "programs")

    def sizes(self, num_sources: int, programs: Programs) -> dict[str, int]:
        """Programs that plan and move so many source segments. Those that sort run all at once, on
        any SMs."""
        tiles = self.num_tiles(num_sources)
        return {
            "one": 1,
            "tiles": tiles,
            "sorting": min(tiles, self._resident * programs.sms),
            "plan_blocks": self.plan_blocks,
            "exchanging": min(self.plan_blocks, programs.dispatch),
            "programs": programs.dispatch,
        }

    def refuse(self, table: int, ticket: int) -> None:
        """Launch what takes a dispatch's turn without joining it."""
        values = {"call": table, "ticket": ticket}
        values |= {"columns": self.num_columns, "blocks": self.plan_blocks}
        self._refuse.launch(values, 1)

    def num_tiles(self, num_sources: int) -> int:
        """Programs that plan so many source segments."""
        return max(1, -(-num_sources // self.spec.tile_sources))

    def values(self, table: int, handle: Launched, weights: int) -> dict[str, int]:
        """What the launches of a handle pass alike."""
        ticket, num_sources = handle.entry.ticket, handle.num_sources
        return {"call": table, "ticket": ticket, "num_sources": num_sources, "weights": weights}

    def _packs(self) -> bool:
        """Whether what packs slabs evaluates the relation, which asks how many ranks there are."""
        if self.num_nodes == 1:
            return False
        given = {each.value for each in self._artifact.kernels[self.spec.kernels["pack"]].args}
        return "extent.ranks" in given

    def _load(self, name: str) -> Kernel:
        num_ranks = self.members.topology.num_ranks
        kernel = kernel_of(
            self._artifact,
            name,
            interpreted=self.interpreted,
            room=self.room,
            num_ranks=num_ranks,
        )
        return traced(kernel, self.members.tracer)
