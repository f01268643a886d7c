"""Hypothesis strategies: topologies, specs, routings and plans.

They shrink towards nothing to do: one rank, plain rows, every point dropped. Numbers of a routing
are drawn as bytes, one draw for a whole tensor, so dozens of ranks are cheap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from hypothesis import strategies as st

from fuscoc.planning.files import Routing
from fuscoc.testing.planning import plan_of
from fuscoc.testing.routes import NoRoutingError, draw_routes
from fuscoc.testing.sizes import divisions, draw_sizes
from fuscoc.testing.spec import Spec, load_spec
from fuscoc.testing.texts import texts
from fuscoc_runtime.plan import Plan
from fuscoc_runtime.scalar import (
    BinaryOp,
    Extent,
    Index,
    Load,
    Scalar,
    Scope,
    builtin_extents,
    evaluate,
    subexpressions,
)
from fuscoc_runtime.topology import Topology


class Planned(NamedTuple):
    """What ``check_plan`` takes."""

    plan: Plan
    routing: Routing


def topologies(
    max_nodes: int = 8, max_ranks_per_node: int = 8, *, spec: Spec | None = None
) -> st.SearchStrategy[Topology]:
    """Topologies up to a size, all kinds equally likely; with ``spec``, those that fit it.

    A placement ``by block`` needs a number of ranks that divides the number of keys; sizes that
    are divided by ``ranks`` have to come out even.

    Raises:
        NoRoutingError: there is none up to that size.
    """
    every = [
        Topology(nodes, ranks)
        for nodes in range(1, max_nodes + 1)
        for ranks in range(1, max_ranks_per_node + 1)
    ]
    every.sort(key=lambda each: (each.num_ranks, each.num_nodes))
    fitting = [each for each in every if spec is None or fits(spec, each)]
    if not fitting:
        most = f"{max_nodes} nodes of {max_ranks_per_node} ranks"
        name = "" if spec is None else f" that fits `{spec.shuffle.name}`"
        raise NoRoutingError(f"there is no topology of up to {most}{name}")
    return st.sampled_from(fitting)


def fits(spec: Spec, topology: Topology) -> bool:
    """Whether the ranks can own the keys of ``spec``, its sizes for so many come out even, and it
    divides by nothing that is 0 then."""
    shuffle, target = spec.shuffle, spec.shuffle.declared.target
    sizes = [*(index.extent for index in shuffle.declared.domain), *shuffle.declared.source.dims]
    if target.kind == "dense":
        sizes.append(target.length)
    elif target.placement.kind == "block" and target.num_keys // target.group % topology.num_ranks:
        return False
    scope = Scope(builtin_extents(0, topology.num_ranks))
    divisors = [each.rhs for each in divisions(shuffle) if _is_known(each.rhs, scope)]
    return all(evaluate(each, scope) > 0 for each in divisors) and all(
        _is_exact(part, scope) for size in sizes for part in subexpressions(size)
    )


def _is_exact(part: Scalar, scope: Scope) -> bool:
    """Whether a division leaves no remainder; sizes that are drawn are chosen so."""
    if not isinstance(part, BinaryOp) or part.op != "/":
        return True
    if not _is_known(part, scope):
        return True
    divisor = evaluate(part.rhs, scope)
    return divisor > 0 and evaluate(part.lhs, scope) % divisor == 0


def _is_known(scalar: Scalar, scope: Scope) -> bool:
    """Whether it is made of constants and of what ``scope`` has."""
    parts = [each for each in subexpressions(scalar) if isinstance(each, Load | Index | Extent)]
    return all(isinstance(each, Extent) and each.name in scope.extents for each in parts)


def specs(topology: Topology | None = None, *, into: bool = False) -> st.SearchStrategy[Spec]:
    """Checked specs over the language, each showing as its text; those that fit ``topology``.

    With ``into`` rows go into memory of the caller's where that can be.
    """
    return texts(topology, into=into).map(load_spec)


@st.composite
def routings(draw: st.DrawFn, spec: Spec, topology: Topology) -> Routing:
    """What all ranks bring to one shuffle, always correct.

    Uneven row counts, empty ranks, dropped points, a key twice in one row, everything to one rank,
    destinations with gaps. Slots of a dense target never collide, a capacity is respected.
    """
    ranks = draw_sizes(draw, spec.shuffle, topology)
    draw_routes(draw, spec.shuffle, topology, ranks)
    given = [
        replace(data, extents={name: data.extents[name] for name in spec.shuffle.declared.extents})
        for data in ranks
    ]
    return Routing(spec.shuffle.name, topology, tuple(given))


@st.composite
def cases(
    draw: st.DrawFn,
    spec: Spec,
    *,
    max_nodes: int = 8,
    max_ranks_per_node: int = 8,
    on: Sequence[Topology] = (),
) -> Routing:
    """A routing of ``spec`` on any topology that fits it, or on one of ``on``, if there are any."""
    fitting = st.sampled_from(on) if on else topologies(max_nodes, max_ranks_per_node, spec=spec)
    return draw(routings(spec, draw(fitting)))


def plans(
    spec: Spec, *, max_nodes: int = 8, max_ranks_per_node: int = 8
) -> st.SearchStrategy[Planned]:
    """Plans of ``spec`` with their routings: ``check_plan(*planned)`` must hold."""
    return cases(spec, max_nodes=max_nodes, max_ranks_per_node=max_ranks_per_node).map(
        lambda routing: Planned(plan_of(spec, routing), routing)
    )
