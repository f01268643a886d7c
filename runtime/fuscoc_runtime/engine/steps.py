"""Carry out a path of the manifest on one rank: launches over descriptor lists, network hops."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import Phase, Request, Transfer
from fuscoc_runtime.engine.buffers import SIGNALS, Buffers, row_bytes
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.kernels.loader import address
from fuscoc_runtime.plan import DescriptorList, RankPlan
from fuscoc_runtime.schema import ExchangeStep, LaunchStep


def run_steps(
    machine: Machine,
    steps: Iterable[LaunchStep | ExchangeStep],
    plan: RankPlan,
    buffers: Buffers,
) -> Generator[Request, Any, None]:
    """Carry out the steps in order; on CUDA they are only enqueued on the current stream."""
    for step in steps:
        if isinstance(step, ExchangeStep):
            yield _transfer(machine, step, plan, buffers)
            continue
        if step.wait:
            # Where ranks take turns in one process, the peers' signals have to be there already.
            yield Phase(step.kernel)
            if step.signal is None and machine.has_given_up():
                continue  # what is missing will not come: do not wait for it again
        _launch(machine, step, plan.lists[step.list], buffers)


def _launch(machine: Machine, step: LaunchStep, columns: DescriptorList, buffers: Buffers) -> None:
    num_descriptors = _num_descriptors(columns)
    if num_descriptors == 0 and step.signal is None and not step.wait:
        return
    signals = buffers.windows[SIGNALS]
    dense = {name: column.contiguous() for name, column in columns.items()}
    values = {
        "num_descriptors": num_descriptors,
        **{name: address(column) for name, column in dense.items()},
        **{argument: buffers.address(name) for argument, name in step.bind.items()},
        **{f"expected_{slot}": machine.expected(slot) for slot in step.wait},
        "signals": address(signals.peer_bases),
        "signal_slot": step.signal or 0,
        "num_peers": machine.num_peers,
        "my_peer": machine.my_peer,
        "wait_base": address(signals.local),
        "max_spins": machine.max_spins,
        "error": address(machine.error),
    }
    machine.launch(step.kernel, values, machine.num_programs)
    if step.signal is not None:
        machine.signalled(step.signal)


def _num_descriptors(columns: DescriptorList) -> int:
    """Entries of a list; its term columns may be longer or shorter than that."""
    entry = next(name for name in columns if name not in ("term_slot", "term_row", "term_point"))
    return len(columns[entry])


def _transfer(machine: Machine, step: ExchangeStep, plan: RankPlan, buffers: Buffers) -> Transfer:
    """The network hop: send slices to landing rows; or the landing rows' results back."""
    sent = "slices" if step.direction == "forward" else "return_slices"
    slice_rows = max(1, machine.shuffle.policy.slice_bytes // row_bytes(machine, sent))
    send = buffers.rows(sent)
    if step.direction == "forward":
        recv = buffers.rows("landing")
        return Transfer(send, recv, plan.net_send_counts, plan.net_recv_counts, slice_rows)
    recv = {name: _net_rows(rows, plan) for name, rows in buffers.rows("staging").items()}
    return Transfer(send, recv, plan.net_recv_counts, plan.net_send_counts, slice_rows)


def _net_rows(staging: Tensor, plan: RankPlan) -> Tensor:
    """The staging rows behind those of the node: one for every row sent over the network."""
    return staging[plan.rows.staging - sum(plan.net_send_counts) :]
