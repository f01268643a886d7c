"""What ``fuscoc explain`` does, behind its options."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fuscoc import driver
from fuscoc.diagnostics import DiagnosticSink, nearest
from fuscoc.explain import facts
from fuscoc.explain.formula import (
    NODES,
    PER_NODE,
    RANKS,
    Formula,
    of_checked,
    of_scalar,
    symbols,
)
from fuscoc.explain.tables import show
from fuscoc.lang.check import declared
from fuscoc.lang.parser import parse
from fuscoc.source import SourceFile, read_source
from fuscoc_runtime.errors import ArtifactError
from fuscoc_runtime.manifest.artifact import load_artifact
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.manifest.schema import Manifest, ShuffleSpec
from fuscoc_runtime.topology import Topology

if TYPE_CHECKING:
    from fuscoc_runtime.plan import Plan


class UnknownExtentError(ValueError):
    """A number for something that no shuffle depends on."""


def run(
    what: Path,
    name: str | None,
    defines: Mapping[str, int],
    values: Mapping[str, int],
    topologies: Sequence[str],
    console: Console,
) -> None:
    """Explain the shuffles of a spec or artifact, or the one of that name.

    ``values``: run-time extents and sizes by name; at most one of ``topologies``.

    Raises:
        CompileError: the spec has errors.
        ArtifactError: there is no such shuffle.
        UnknownExtentError: no shuffle depends on a name of ``values``.
    """
    every = read_shuffles(what, defines, topologies)
    shuffles = [each for each in every if name in (None, each.name)]
    if not shuffles:
        holds = ", ".join(each.name for each in every)
        raise ArtifactError(str(what), f"there is no shuffle `{name}`; it holds {holds}")
    known = {each for shuffle in shuffles for each in run_time_names(shuffle)}
    for unknown in sorted(values.keys() - known):
        match = nearest(unknown, known)
        hint = f"did you mean `{match}`?" if match else f"these count: {', '.join(sorted(known))}"
        if not known:
            hint = "every size is known"
        raise UnknownExtentError(f"nothing depends on `{unknown}`; {hint}")
    topology = Topology.parse(topologies[0]) if topologies else None
    dims = {} if what.is_dir() else target_dims(read_source(what), defines, shuffles)
    for number, shuffle in enumerate(shuffles):
        if number:
            console.print()
        plan = None
        if shuffle.program.is_static and topology is not None:
            plan = plan_of(what, shuffle, defines, topology)
        known_values = {**values, **topology_values(topology)}
        show(shuffle, known_values, topology, plan, dims.get(shuffle.name, ()), console)


def plan_of(
    what: Path, shuffle: ShuffleSpec, defines: Mapping[str, int], topology: Topology
) -> Plan:
    """The plan of a static shuffle of a spec or artifact."""
    from fuscoc.bake import make_plan
    from fuscoc.pipeline import parse_module
    from fuscoc.planning.modules import module_file, read_module

    if what.is_dir():
        return make_plan(read_module(what, shuffle.name), shuffle, topology)
    text = driver.emit_files(read_source(what), defines, module_file(shuffle.name))
    return make_plan(parse_module(text), shuffle, topology)


def read_shuffles(
    what: Path, defines: Mapping[str, int], topologies: Sequence[str] = ()
) -> tuple[ShuffleSpec, ...]:
    """What the manifest says: of an artifact, or of the one that a spec would be compiled to.

    Raises:
        CompileError: the spec has errors, or cannot run on the topologies.
    """
    if what.is_dir():
        return load_artifact(what).manifest.shuffles
    source = read_source(what)
    driver.check_source(source, defines, topologies)
    return decode(Manifest, json.loads(driver.emit_files(source, defines, "manifest"))).shuffles


def target_dims(
    source: SourceFile, defines: Mapping[str, int], shuffles: Sequence[ShuffleSpec]
) -> dict[str, tuple[Formula, ...]]:
    """The extents of the targets by shuffle, as the spec declares them."""
    sink = DiagnosticSink(source)
    scopes = {each.ident.name: declared(each, defines, sink) for each in parse(source, sink)}
    return {
        each.name: tuple(
            map(of_checked, scopes[each.name].layouts[each.declared.target.layout].extents)
        )
        for each in shuffles
    }


def run_time_names(shuffle: ShuffleSpec) -> Iterator[str]:
    """The extents of a shuffle, and the inputs that sizes are read from."""
    yield from shuffle.declared.extents
    for layout in facts.layouts(shuffle):
        for dim in layout.dims:
            yield from symbols(dim) - {RANKS.name, "rank"}
    for index in shuffle.declared.domain:
        yield from symbols(of_scalar(index.extent)) - {RANKS.name, "rank"}


def topology_values(topology: Topology | None) -> dict[str, int]:
    """What the formulae call a topology's numbers."""
    if topology is None:
        return {}
    return {
        NODES.name: topology.num_nodes,
        PER_NODE.name: topology.ranks_per_node,
        RANKS.name: topology.num_ranks,
    }
