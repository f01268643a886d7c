"""Executes descriptor lists with plain numpy copies, one descriptor at a time.

Shares nothing with the engine: what it checks is that the lists alone describe the shuffle.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuscoc_runtime.manifest.program import FieldRuns
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import RankPlan
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.topology import Topology

Array = np.ndarray[Any, Any]
Rows = list[dict[str, Array]]


@dataclass
class Traffic:
    """Copies by kind: (source rank, first cell, receiver) -> how often."""

    network: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    nvlink: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    local: int = 0


class Executor:
    """All ranks' plans over one set of sources."""

    def __init__(
        self,
        spec: ShuffleSpec,
        topology: Topology,
        plans: Sequence[RankPlan],
        ranks: Sequence[RankData],
    ) -> None:
        self.spec, self.topology, self.plans, self.ranks = spec, topology, plans, ranks
        self.traffic = Traffic()

    def dispatch(self) -> tuple[Rows, list[Array]]:
        """Target rows of every rank, and how often each slot was written."""
        targets = [
            {runs.name: self._rows(runs, plan.rows.target) for runs in self.spec.program.runs}
            for plan in self.plans
        ]
        writes = [np.zeros(plan.rows.target, dtype=np.int64) for plan in self.plans]

        def put(rank: int, slot: int, row: Mapping[str, Array]) -> None:
            writes[rank][slot] += 1
            for name, values in row.items():
                targets[rank][name][slot] = values

        landing = self._network_hop()
        for plan in self.plans:
            first = self.topology.node(plan.rank) * self.topology.ranks_per_node
            for each in entries(plan, "direct"):
                to = first + each["dst_peer"]
                self.traffic.nvlink[plan.rank, each["src_offset"], to] += 1
                put(to, each["dst_slot"], self._read(plan.rank, each))
            for each in entries(plan, "forward"):
                origin, row = landing[plan.rank][each["src_row"]]
                to = first + each["dst_peer"]
                self.traffic.nvlink[(*origin, to)] += 1
                put(to, each["dst_slot"], row)
        for plan in self.plans:
            for each in entries(plan, "local"):
                self.traffic.local += 1
                rows = {name: rows[each["src_slot"]] for name, rows in targets[plan.rank].items()}
                assert writes[plan.rank][each["src_slot"]] == 1, "a lead row comes first"
                put(plan.rank, each["dst_slot"], rows)
        return targets, writes

    def combine(self, rows: Rows, weights: Sequence[Array] | None) -> Rows:
        """Results of every rank, in f64 (sum) or the row's dtype (copy), shaped [cells, cell]."""
        received = self._exchange_weights(weights)
        staging = [{} for _ in self.plans]  # type: list[dict[int, dict[str, Array]]]
        forward = [{} for _ in self.plans]  # type: list[dict[int, dict[str, Array]]]
        for plan in self.plans:
            first = self.topology.node(plan.rank) * self.topology.ranks_per_node

            def term(
                position: int, columns: Mapping[str, Array], rank: int = plan.rank
            ) -> dict[str, Array]:
                slot, point = columns["term_slot"][position], columns["term_point"][position]
                return {
                    name: self._weigh(values[slot], received[rank], point)
                    for name, values in rows[rank].items()
                }

            for name, out in (("reduce_direct", staging), ("reduce_forward", forward)):
                columns = numpy_columns(plan, name)
                for each in entries(plan, name):
                    box = out[first + each["dst_peer"]]
                    assert each["dst_row"] not in box
                    box[each["dst_row"]] = self._sum(
                        each, lambda position, c=columns, t=term: t(position, c)
                    )
        back = [self._reduce_node(plan, forward[plan.rank]) for plan in self.plans]
        self._return_hop(back, staging)
        return [self._reduce_source(plan, staging[plan.rank]) for plan in self.plans]

    def _network_hop(self) -> list[list[tuple[tuple[int, int], dict[str, Array]]]]:
        """Landing rows of every forwarder, each with where it came from."""
        landing = [[] for _ in self.plans]  # type: list[list[Any]]
        windows = self._hand_over()
        for plan, window in zip(self.plans, windows, strict=True):
            slices = {}
            for each in entries(plan, "net_send"):
                origin = (plan.rank, each["src_offset"])
                slices[each["dst_row"]] = origin, self._read(plan.rank, each)
            for each in entries(plan, "carried"):
                slices[each["dst_row"]] = window[each["src_row"]]
            assert sorted(slices) == list(range(plan.rows.slices))
            assert sum(plan.net_send_counts) == len(slices)
            rows = iter(slices[row] for row in sorted(slices))
            for to, count in enumerate(plan.net_send_counts):
                for origin, row in itertools.islice(rows, count):
                    node = self.topology.node(to)
                    assert node != self.topology.node(plan.rank)
                    self.traffic.network[(*origin, node)] += 1
                    landing[to].append((origin, row))
                assert self.plans[to].net_recv_counts[plan.rank] == count
        for plan in self.plans:
            assert len(landing[plan.rank]) == plan.rows.landing == sum(plan.net_recv_counts)
        return landing

    def _hand_over(self) -> list[dict[int, Any]]:
        """What every rank has been handed to send, by row of its window."""
        windows = [{} for _ in self.plans]  # type: list[dict[int, Any]]
        for plan in self.plans:
            first = self.topology.node(plan.rank) * self.topology.ranks_per_node
            for each in entries(plan, "carry"):
                to = first + each["dst_peer"]
                assert to != plan.rank, "a rank hands nothing to itself"
                assert each["dst_row"] not in windows[to]
                origin = (plan.rank, each["src_offset"])
                windows[to][each["dst_row"]] = origin, self._read(plan.rank, each)
        for plan, window in zip(self.plans, windows, strict=True):
            assert sorted(window) == list(range(plan.rows.carried))
        return windows

    def _return_hop(self, back: list[list[Any]], staging: list[dict[int, Any]]) -> None:
        """Landing rows' results to their senders, into the staging rows after the direct ones."""
        returned = [{} for _ in self.plans]  # type: list[dict[int, Any]]
        for plan in self.plans:
            rows = iter(back[plan.rank])
            for to, count in enumerate(plan.net_recv_counts):
                first = sum(self.plans[to].net_send_counts[: plan.rank])
                for row in range(first, first + count):
                    returned[to][row] = next(rows)
        for plan in self.plans:
            node = self.topology.node(plan.rank) * self.topology.ranks_per_node
            num_direct = len(numpy_columns(plan, "direct")["dst_slot"])
            to_rows = {row: (plan.rank, num_direct + row) for row in returned[plan.rank]}
            if "hand_back" in plan.lists:
                to_rows = {
                    each["src_row"]: (node + each["dst_peer"], each["dst_row"])
                    for each in entries(plan, "hand_back")
                }
            assert sorted(to_rows) == sorted(returned[plan.rank])
            for row, (to, staged) in to_rows.items():
                assert staged not in staging[to]
                staging[to][staged] = returned[plan.rank][row]
        for plan in self.plans:
            assert sorted(staging[plan.rank]) == list(range(plan.rows.staging))

    def _reduce_node(self, plan: RankPlan, forward: Mapping[int, Any]) -> list[Any]:
        assert sorted(forward) == list(range(plan.rows.forward_staging))
        result: list[Any] = [None] * plan.rows.landing
        for each in entries(plan, "reduce_node"):
            result[each["dst_row"]] = self._sum(each, forward.__getitem__)
        return result

    def _reduce_source(self, plan: RankPlan, staging: Mapping[int, Any]) -> dict[str, Array]:
        columns = numpy_columns(plan, "reduce_source")
        assert len(columns["dst_offset"]) == plan.num_sources
        result = {}
        for runs in self.spec.program.runs:
            source = self._cells(plan.rank, runs)
            dtype = source.dtype if self._is_copy else np.float64
            result[runs.name] = np.zeros(source.shape, dtype=dtype)
        for each in entries(plan, "reduce_source"):
            if each["term_begin"] == each["term_end"]:
                continue
            total = self._sum(each, lambda position: staging[columns["term_row"][position]])
            for runs in self.spec.program.runs:
                cells = segment_cells(runs, each, "dst")
                result[runs.name][cells] = total[runs.name].reshape(len(cells), runs.cell_elems)
        return result

    @property
    def _is_copy(self) -> bool:
        return self.spec.declared.combine is not None and self.spec.declared.combine.kind == "copy"

    def _sum(
        self, each: Mapping[str, int], term: Callable[[int], dict[str, Array]]
    ) -> dict[str, Array]:
        terms = [term(position) for position in range(each["term_begin"], each["term_end"])]
        assert terms, "every group has a term"
        if self._is_copy:
            (only,) = terms
            return only
        return {name: sum(each[name] for each in terms) for name in terms[0]}  # type: ignore

    def _weigh(self, row: Array, weights: Array | None, point: int) -> Array:
        if self._is_copy:
            return row
        return row.astype(np.float64) * (1.0 if weights is None else float(weights[point]))

    def _exchange_weights(self, weights: Sequence[Array] | None) -> list[Array | None]:
        if weights is None:
            return [None for _ in self.plans]
        blocks = []
        for plan in self.plans:
            assert sum(plan.point_send_counts) == len(plan.point_order)
            ordered = weights[plan.rank].reshape(-1)[plan.point_order.numpy()]
            blocks.append(np.split(ordered, np.cumsum(plan.point_send_counts)[:-1]))
        received: list[Array | None] = []
        for plan in self.plans:
            parts = [block[plan.rank] for block in blocks]
            assert [len(part) for part in parts] == list(plan.point_recv_counts)
            received.append(np.concatenate(parts))
        return received

    def _read(self, rank: int, each: Mapping[str, int]) -> dict[str, Array]:
        return {
            runs.name: self._cells(rank, runs)[segment_cells(runs, each, "src")].reshape(-1)
            for runs in self.spec.program.runs
        }

    def _cells(self, rank: int, runs: FieldRuns) -> Array:
        tensor = self.ranks[rank].source[runs.name]
        return tensor.numpy().reshape(tensor.numel() // runs.cell_elems, runs.cell_elems)

    def _rows(self, runs: FieldRuns, num_rows: int) -> Array:
        dtype = self._cells(0, runs).dtype
        return np.full((num_rows, runs.seg_elems), 77, dtype=dtype)


def segment_cells(runs: FieldRuns, each: Mapping[str, int], side: str) -> Array:
    """The cells of a segment: its runs at their strides."""
    cells = each[f"{side}_offset"] + np.arange(runs.run_elems // runs.cell_elems)
    for dim in reversed(runs.run_dims):
        stride = dim.src_stride
        if isinstance(stride, str):
            stride = each[stride.replace("src", side)]
        cells = (np.arange(dim.count)[:, None] * stride + cells).reshape(-1)
    return cells


def entries(plan: RankPlan, name: str) -> Iterator[dict[str, int]]:
    """A list's descriptors as dictionaries; term columns are no part of them.

    Only plans that hand rows over have the lists for that.
    """
    if name not in plan.lists:
        return
    columns = numpy_columns(plan, name)
    own = {key: values for key, values in columns.items() if not key.startswith("term_")}
    own |= {key: columns[key] for key in ("term_begin", "term_end") if key in columns}
    lengths = {len(values) for values in own.values()}
    assert len(lengths) == 1, f"{name} has columns of different lengths"
    for i in range(lengths.pop()):
        yield {key: int(values[i]) for key, values in own.items()}


def numpy_columns(plan: RankPlan, name: str) -> dict[str, Array]:
    return {key: values.numpy() for key, values in plan.lists[name].items()}
