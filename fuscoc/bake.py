"""Plans of static shuffles, made when compiling.

A shuffle is *static* if its relation loads no input and its extents are constants or functions of
``rank`` and ``ranks``. Then its whole plan follows from the spec and the topology, so the compiler
makes it once for each topology that it is given and stores it in the artifact: such a shuffle
evaluates no relation and exchanges no metadata when it runs.

All of it is done in arrays of numpy: to load PyTorch would take longer than the rest of the
compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from typing import Any

from fuscoc.diagnostics import DiagnosticSink
from fuscoc.lang.checked import CheckedShuffle
from fuscoc.lang.scalars import extents
from fuscoc.manifest import CompiledShuffle, build_manifest, compile_shuffle, with_replies
from fuscoc.pipeline import parse_module
from fuscoc.planning.points import points_of
from fuscoc_runtime.engine.bounds import check_bounds
from fuscoc_runtime.engine.divisions import check_divisions
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import Plan, plan_all
from fuscoc_runtime.scalar import Scope, builtin_extents
from fuscoc_runtime.topology import Topology

CODE = "FSC057"


def baker(
    shuffles: Sequence[CompiledShuffle], topologies: Sequence[str]
) -> Callable[[dict[str, Any]], dict[str, bytes]]:
    """``bake`` for these shuffles and topologies, such as ``2x4``.

    Raises:
        TopologyError: one of them is no topology.
    """
    parsed = [Topology.parse(each) for each in topologies]
    return lambda manifest: bake(shuffles, manifest, parsed)


def bake(
    shuffles: Sequence[CompiledShuffle],
    manifest: dict[str, Any],
    topologies: Sequence[Topology],
) -> dict[str, bytes]:
    """Plan every static shuffle for every topology: the files to add to the artifact, by path.

    ``manifest`` describes the ``shuffles``, in their order; their ``baked`` plans are entered.

    Raises:
        CompileError: no shuffle is static, or a static one cannot be planned for a topology.
    """
    sink = DiagnosticSink(shuffles[0].checked.source_file)
    entries = [
        part
        for entry in manifest["shuffles"]
        for part in (entry, entry["reply"])
        if part is not None
    ]
    files: dict[str, bytes] = {}
    for item, entry in zip(with_replies(shuffles), entries, strict=True):
        spec = decode(ShuffleSpec, entry)
        for topology, plan in _plans(item, spec, topologies, sink):
            path = f"plans/{spec.name}.{topology}.npz"
            files[path] = _saved(plan)
            entry["baked"][str(topology)] = path
    sink.raise_errors()
    if not files:
        for item in shuffles:
            _report_dynamic(item.checked, sink)
        sink.raise_errors()
    return files


def check_plans(shuffles: Sequence[CheckedShuffle], topologies: Sequence[Topology]) -> None:
    """Plan every static shuffle for every topology, to see that it can be done.

    Raises:
        CompileError: with every shuffle and topology for which it cannot.
    """
    source = shuffles[0].source_file
    sink = DiagnosticSink(source)
    for checked in (each for each in shuffles if each.is_static):
        item = compile_shuffle(checked)
        (entry,) = build_manifest(source, [item])["shuffles"]
        for _ in _plans(item, decode(ShuffleSpec, entry), topologies, sink):
            pass
    sink.raise_errors()


def _plans(
    item: CompiledShuffle, spec: ShuffleSpec, topologies: Sequence[Topology], sink: DiagnosticSink
) -> Iterator[tuple[Topology, Plan]]:
    """The plans of a static shuffle, one by one: they may be large. At the end, one report names
    all topologies for which there is none."""
    if not spec.program.is_static:
        return
    problems = {}
    module = parse_module(item.dumps["L0"])
    for topology in topologies:
        try:
            plan = make_plan(module, spec, topology)
        except FuscoRuntimeError as error:
            problems[topology] = f"{error.code}: {error.message}"
        else:
            yield topology, plan
    if problems:
        names = " and ".join(map(str, problems))
        notes = [f"{topology}: {problem}" for topology, problem in problems.items()]
        message = f"`{spec.name}` cannot be planned for {names}"
        sink.report(CODE, item.checked.dispatch_span, message, notes=notes)


def make_plan(module: Any, spec: ShuffleSpec, topology: Topology) -> Plan:
    """The plan of a static shuffle for all ranks of a topology; ``module`` is its own at L0.

    Raises:
        FuscoRuntimeError: what every dispatch would raise there.
    """
    num_ranks = topology.num_ranks
    for rank in range(num_ranks):
        check_divisions(spec, rank, builtin_extents(rank, num_ranks))
        check_bounds(spec, rank, builtin_extents(rank, num_ranks))
    return plan_all(spec, topology, points_of(module, spec, topology, [Scope()] * num_ranks))


def _saved(plan: Plan) -> bytes:
    file = BytesIO()
    plan.write(file)
    return file.getvalue()


def _report_dynamic(checked: CheckedShuffle, sink: DiagnosticSink) -> None:
    """Point at whatever a plan of the shuffle depends on."""
    message = f"`{checked.name}` cannot be planned when compiling"
    help = "leave out --topology: it is planned when it runs"
    for given in checked.inputs:
        if given.role not in ("weight", "cast"):
            label = f"`{given.name}` is only known when the shuffle runs"
            sink.report(CODE, given.span, message, label, help=help)
            return
    for index in checked.domain:
        for name in extents(index.extent):
            if name in checked.extents:
                label = f"its extent `{name}` is only known when the shuffle runs"
                sink.report(CODE, index.span, message, label, help=help)
                return
    names = ", ".join(f"`{name}`" for name in checked.extents)
    sink.report(CODE, checked.dispatch_span, message, f"this depends on {names}", help=help)
