"""Replies: the way back by rows of their own, whose routing is planned beside the dispatch.

A reply is a shuffle with the points and slots of another one, and a machine of its own. Its
dispatch, by which only gradients travel, never plans: what came with the other's handle says where
rows go.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from torch import Tensor

from fuscoc_runtime.comm.requests import Request
from fuscoc_runtime.engine.arguments import Arguments
from fuscoc_runtime.engine.buffers import row_bytes
from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.relation import evaluate_relation
from fuscoc_runtime.engine.sizes import result_shapes
from fuscoc_runtime.engine.weights import exchange, sent_weights, travelling
from fuscoc_runtime.plan import Points, RankPlan
from fuscoc_runtime.plan.agree import attempt
from fuscoc_runtime.plan.planner import num_sources, plan_with_weights


def plan_reply(
    machine: Machine, asked: Arguments, asked_by: RankPlan
) -> Generator[Request, Any, Handle]:
    """The routing of a reply; collective over all ranks, like the dispatch that it answers.

    ``asked``, ``asked_by``: arguments and plan of that dispatch, which has succeeded. Weights of
    the reply travel now, if they were given with it.
    """
    program = machine.shuffle.program
    inputs = {name: asked.inputs[name] for name in program.inputs}
    arguments = Arguments({}, inputs, asked.extents, asked.weights)
    known = asked_by if machine.shuffle.shares_plan else machine.plan
    plan, received = yield from _plan(machine, arguments, known)
    machine.num_dispatches += 1  # now that all ranks have it
    if program.is_static:
        machine.plan = plan
    return Handle(
        plan,
        machine.context.topology,
        asked.extents,
        result_shapes(machine.shuffle, asked.extents),
        row_bytes(machine, "target"),
        row_bytes(machine, "slices"),
        0.0,
        machine.identity,
        machine.num_dispatches,
        asked.weights,
        program.is_compact,
        sent_weights=sent_weights(machine, asked.weights, received),
    )


def _plan(
    machine: Machine, arguments: Arguments, known: RankPlan | None
) -> Generator[Request, Any, tuple[RankPlan, Tensor | None]]:
    """The plan, made unless it is ``known``, and the weights that have travelled."""
    context = machine.context
    if known is not None:
        weights = travelling(machine, arguments.weights, known.num_sources)
        return known, (None if weights is None else (yield exchange(weights, known)))
    points = attempt(context.rank, lambda: evaluate_relation(machine, arguments))
    weights = None
    if isinstance(points, Points):
        weights = travelling(machine, arguments.weights, num_sources(context, points))
    return (yield from plan_with_weights(context, points, weights))


def own_handle(machine: Machine, handle: Handle) -> Handle:
    """The routing by which ``machine`` brings back what came with ``handle``.

    That of a reply is in the handle of the dispatch; the other way back of that takes gradients
    alone, without the weights of the reply.
    """
    if machine.reply is not None:
        return replace(handle, weights={}, sent_weights=None)
    if machine.asks is None:
        return handle
    assert handle.reply is not None, "every dispatch of a shuffle with a reply plans that"
    return replace(handle.reply, weights=handle.weights)
