"""What one rank of a large job takes: its planner, its host and its memory at 8 ... 1,024 ranks.

``python -m benchmarks.scale --markdown docs/benchmarks/scale.md``

One rank plans a batch; the others are faked. Their routings are this rank's, turned: the rank at
place (node i, local a) sends to the node that is i further, and there to the local rank that is a
further. So what every rank counts, and what it sends to this one, follows from what this rank has,
while counts still differ by rank and node. Up to 64 ranks the same plan is made with all ranks in
lockstep, and has to be equal in all that is counted.

Times are a processor's, without those of other work beside it. Descriptor lists are made by tensor
operations; where a GPU carries these out, what is left for the host is ``counts``, ``slots`` and
``network``, and to launch some 150 of them. Every step has the exponent of its growth, fitted over
the four largest sizes: 1 is linear in the ranks.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import tracemalloc
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from benchmarks import scale_fixed
from benchmarks.planner import SPEC, make_points
from fuscoc.testing import load_spec
from fuscoc_runtime import Topology
from fuscoc_runtime.arrays import on_host
from fuscoc_runtime.comm.greeting import Greeting
from fuscoc_runtime.comm.liveness import ProcessId
from fuscoc_runtime.comm.nodes import Place, find_nodes
from fuscoc_runtime.comm.requests import AllToAlls, StartGather
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.plan import PlanContext, Points, plan_all, plan_rank, planner
from fuscoc_runtime.plan.census import NUM_SCALARS, census_size
from fuscoc_runtime.plan.flows import Int64Array

RANKS_PER_NODE, TOPK, NUM_KEYS = 8, 8, 1024
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
CHECKED = 64
FITTED = 4
"""The largest sizes, over which growth is fitted."""

COUNTS, SLOTS, NETWORK, LISTS, GREETINGS = "counts", "slots", "network", "lists", "greetings"
STEPS = {
    COUNTS: "counts of all ranks, looked at",
    SLOTS: "slots of all ranks",
    NETWORK: "forwarders, stages and rounds",
    LISTS: "descriptor lists and buffers",
    GREETINGS: "who the others are, once at the opening",
}
WHY = """
Quadratic are the counts that are read, forwarders with their stages, and the memory of a plan: a
rank gathers a row of every rank, with two words for every rank and one for every node and key, and
makes tables of ranks by ranks of it. As long as there are more keys than ranks their part, which is
linear, hides that: the fitted exponents are still below 2. Slots are linear for as many keys, and
quadratic where there are more keys with more ranks. Lists are dominated by what is linear up to
here, though the sizes of buffers are read off the same tables.

All that is needed of the tables are this rank's row and column, sums over sources, and the largest
of these sums. An exchange of the counts of every pair, in which a destination divides its slots and
answers where those of each source begin, would be linear; it is a second exchange before rows can
move. It is not built.

Exact sizes by the kernels of fixed capacity need neither, and GPUs take those where they can. In a
call of theirs the ranks of a node tell each other how many segments every rank has, in the names of
their rails. So where slabs or windows are too small all ranks see it in the same call, and make
larger ones and repeat it without a word. Slabs are as large as the rank with most segments needs,
and ranks with fewer send padding.
""".strip()
BAR_HOST_MS, BAR_COUNTS_BYTES = 0.5, 64 << 10


@dataclass(frozen=True)
class Result:
    """One size: medians of seconds by step, bytes."""

    num_ranks: int
    seconds: Mapping[str, float]
    sent_bytes: int
    read_bytes: int
    peak_bytes: int

    @property
    def host_seconds(self) -> float:
        """What a dispatch takes of the host, wherever the lists are made."""
        return sum(self.seconds[step] for step in (COUNTS, SLOTS, NETWORK))


class Clock:
    """Seconds by step, of functions of the planner that are timed where they are called."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, step: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with self.step(step):
                return function(*arguments)

        return call

    @contextmanager
    def step(self, step: str) -> Generator[None, None, None]:
        started = time.process_time()
        try:
            yield
        finally:
            spent = time.process_time() - started
            self.seconds[step] = self.seconds.get(step, 0.0) + spent

    @contextmanager
    def watching(self) -> Generator[None, None, None]:
        """The planner's calls of other rooms, timed."""
        names = {"lay_out_slots": SLOTS, "plan_network_hop": NETWORK}
        before = {name: getattr(planner, name) for name in names}
        for name, step in names.items():
            setattr(planner, name, self.timed(step, before[name]))
        try:
            yield
        finally:
            for name, function in before.items():
                setattr(planner, name, function)


def turned(topology: Topology, rank: int) -> Tensor:
    """int64 [num_ranks]: where ``rank`` sends what rank 0 sends to every rank."""
    peer = torch.arange(topology.num_ranks)
    m = topology.ranks_per_node
    node = (peer // m + topology.node(rank)) % topology.num_nodes
    return node * m + (peer % m + topology.local_rank(rank)) % m


def routing(topology: Topology, num_tokens: int, rank: int) -> Tensor:
    """The keys of a rank's tokens, int64 [num_tokens, TOPK]; keys lie on ranks in blocks."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(num_tokens, NUM_KEYS, generator=generator)
    keys, per_rank = scores.topk(TOPK, dim=1).indices, NUM_KEYS // topology.num_ranks
    return turned(topology, rank)[keys // per_rank] * per_rank + keys % per_rank


def census_of_all(ctx: PlanContext, row: Tensor) -> Int64Array:
    """The rows of all ranks, [num_ranks, census_size], given that of rank 0."""
    topology, begin = ctx.topology, NUM_SCALARS
    num_ranks, m = topology.num_ranks, topology.ranks_per_node
    points, pairs, flows, keys = row[begin:].split(
        [num_ranks, num_ranks, topology.num_nodes, NUM_KEYS]
    )
    rows = row.repeat(num_ranks, 1)
    by_rank = keys.view(num_ranks, -1)
    for rank in range(num_ranks):
        to = turned(topology, rank)
        theirs = [torch.empty_like(each) for each in (points, pairs, flows, by_rank)]
        for there, here in zip(theirs[:2], (points, pairs), strict=True):
            there[to] = here
        theirs[2][to[::m] // m] = flows
        theirs[3][to] = by_rank
        rows[rank, begin:] = torch.cat([each.flatten() for each in theirs])
    return on_host(rows)


def received(topology: Topology, part: Any) -> Tensor:
    """What rank 0 gets, if what a rank sends it is what rank 0 sends to the opposite one."""
    m, blocks = topology.ranks_per_node, torch.split(part.tensor, list(part.send_counts))
    opposite = [
        (-topology.node(rank) % topology.num_nodes) * m + -topology.local_rank(rank) % m
        for rank in range(topology.num_ranks)
    ]
    whole = torch.cat([blocks[rank] for rank in opposite])
    assert len(whole) == sum(part.recv_counts)
    return whole


def plan_once(
    ctx: PlanContext, points: Points, rows: Int64Array, clock: Clock
) -> tuple[Any, dict[str, float]]:
    """Rank 0's plan, and the seconds of its steps: of lists, all that is in no other."""
    clock.seconds = {}
    work = plan_rank(ctx, points)
    with clock.watching(), clock.step("all"):
        request = next(work)
        assert isinstance(request, StartGather)
        answer: Any = lambda: rows  # noqa: E731
        try:
            while True:
                request = work.send(answer)
                assert isinstance(request, AllToAlls), request
                answer = [received(ctx.topology, part) for part in request.parts]
        except StopIteration as done:
            plan = done.value
    seconds = dict(clock.seconds)
    # Read by itself: inside a plan it is spread over lines.
    with clock.step(COUNTS):
        _ = rows[:, :NUM_SCALARS].T.tolist()
        planner.Census.of(ctx, rows).points.sum(axis=0)
    seconds[COUNTS] = clock.seconds[COUNTS]
    seconds[LISTS] = seconds.pop("all") - seconds[SLOTS] - seconds[NETWORK]
    return plan, seconds


def greetings(topology: Topology) -> float:
    """Seconds to read what all ranks say of themselves."""
    said = [
        json.dumps(
            Greeting(
                Place(f"node-{topology.node(rank)}", False, "there is no libnvidia-ml.so.1"),
                ProcessId(f"node-{topology.node(rank)} " + 36 * "0", rank, "123456"),
                16 * "0",
                None,
                ("moe", "0.1.0", 64 * "0", {"hidden": 7168}, [], {"timeout": None}),
            ).to_json()
        )
        for rank in range(topology.num_ranks)
    ]
    started = time.process_time()
    heard = [Greeting.from_json(json.loads(each)) for each in said]
    assert find_nodes([each.place for each in heard]).topology == topology
    return time.process_time() - started


def check(spec: ShuffleSpec, topology: Topology, num_tokens: int, plan: Any) -> None:
    """All that is counted is as in a plan of all ranks."""
    tables = [routing(topology, num_tokens, rank) for rank in range(topology.num_ranks)]
    expected = plan_all(spec, topology, make_points(spec, topology, tables)).ranks[0]
    for name in (
        *("rows", "max_rows", "net_send_counts", "net_recv_counts", "flow_counts"),
        *("point_send_counts", "point_recv_counts"),
    ):
        assert getattr(plan, name) == getattr(expected, name), name
    for name in ("direct", "net_send"):
        for column, values in expected.lists[name].items():
            assert plan.lists[name][column].tolist() == values.tolist(), (name, column)


def measure(spec: ShuffleSpec, num_ranks: int, num_tokens: int, repeats: int) -> Result:
    """One size."""
    topology = Topology(num_ranks // RANKS_PER_NODE, RANKS_PER_NODE)
    ctx, clock = PlanContext(spec, topology, 0, torch.device("cpu")), Clock()
    [points] = make_points(spec, topology, [routing(topology, num_tokens, 0)])
    row = next(plan_rank(ctx, points)).tensor
    rows = census_of_all(ctx, row)
    plan, _ = plan_once(ctx, points, rows, clock)
    if num_ranks <= CHECKED:
        check(spec, topology, num_tokens, plan)
    times: dict[str, list[float]] = {step: [] for step in STEPS}
    for _ in range(repeats):
        seconds = plan_once(ctx, points, rows, clock)[1] | {GREETINGS: greetings(topology)}
        for step in STEPS:
            times[step].append(seconds[step])
    tracemalloc.start()
    plan_once(ctx, points, rows, clock)
    peak = tracemalloc.get_traced_memory()[1] + rows.nbytes
    tracemalloc.stop()
    medians = {step: float(np.median(each)) for step, each in times.items()}
    sent = census_size(ctx) * row.element_size()
    return Result(num_ranks, medians, sent, rows.nbytes, peak)


Column: TypeAlias = tuple[str, str, Callable[[Any], float]]
"""A name, a format, and what of a size stands there."""


def exponent(results: Sequence[Any], of: Callable[[Any], float]) -> float:
    """By which power of the ranks something grows, over the largest sizes."""
    last = results[-FITTED:]
    ranks = np.log([each.num_ranks for each in last])
    return float(np.polyfit(ranks, np.log([of(each) for each in last]), 1)[0])


def table(columns: Sequence[Column], results: Sequence[Any]) -> str:
    lines = [
        "| ranks | " + " | ".join(name for name, _, _ in columns) + " |",
        "|---" * (len(columns) + 1) + "|",
    ]
    lines += [
        f"| {each.num_ranks:,} | "
        + " | ".join(format(of(each), form) for _, form, of in columns)
        + " |"
        for each in results
    ]
    grown = " | ".join(f"{exponent(results, of):.2f}" for _, _, of in columns)
    lines.append(f"| **exponent** | {grown} |")
    return "\n".join(lines)


def render_fixed(results: Sequence[scale_fixed.Result]) -> str:
    """The section of fixed capacity."""
    last, columns = results[-1], scale_fixed.COLUMNS
    host = 1e3 * max(last.dispatch_seconds, last.combine_seconds)
    steepest = max(exponent(results, of) for _, _, of in columns)
    bars = (
        f"At {last.num_ranks:,} ranks a call takes {host:.3f} ms of the host, where at most "
        f"{BAR_HOST_MS} ms are wanted, and no host\nreads counts. Devices tell them inside a node: "
        f"each tells each other {last.counts_bytes / 1024:,.1f} KB, where at most "
        f"{BAR_COUNTS_BYTES >> 10} are\nwanted. Nothing grows faster than the ranks to the power "
        f"of {steepest:.2f}."
    )
    parts = "## Fixed capacity", scale_fixed.WHAT, table(columns, results), bars
    return "\n\n".join(parts) + "\n"


def _step_column(step: str) -> Column:
    return f"{step}, µs", ".0f", lambda each: each.seconds[step] * 1e6


def render(results: Sequence[Result], num_tokens: int, machine: str) -> str:
    columns = [_step_column(step) for step in STEPS]
    columns += [
        ("host of a dispatch, µs", ".0f", lambda each: each.host_seconds * 1e6),
        ("counts sent, KB", ",.1f", lambda each: each.sent_bytes / 1e3),
        ("counts read, KB", ",.0f", lambda each: each.read_bytes / 1e3),
        ("memory of a plan, MB", ",.1f", lambda each: each.peak_bytes / 1e6),
    ]
    last = results[-1]
    host, read = last.host_seconds * 1e3, last.read_bytes / 1024
    bars = (
        f"At {last.num_ranks:,} ranks the host takes {host:.2f} ms of a dispatch, where at most "
        f"{BAR_HOST_MS} ms are wanted, and reads {read:,.0f} KB of counts, where at most "
        f"{BAR_COUNTS_BYTES >> 10} KB are."
    )
    head = [
        "# One rank of a large job",
        "",
        f"Made by `python -m benchmarks.scale --markdown docs/benchmarks/scale.md`: {num_tokens} "
        f"tokens a rank, top-{TOPK} of {NUM_KEYS:,}",
        f"keys, nodes of {RANKS_PER_NODE}, `balance none`; one rank plans, the others are faked. "
        "Medians of processor time",
        f"({machine}, torch {torch.__version__}, Python "
        f"{platform.python_version()}, {date.today()})."
        " On GPUs the host only launches what makes the lists.",
        "",
        "| step | is |",
        "|---|---|",
        *(f"| {step} | {text} |" for step, text in STEPS.items()),
        "",
    ]
    return "\n".join([*head, table(columns, results), "", bars, "", WHY]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=SIZES)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--machine", default=platform.machine(), help="what to say of it")
    parser.add_argument("--markdown", type=Path, help="where to write the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    spec = load_spec(SPEC, experts=NUM_KEYS).shuffle
    results = [measure(spec, each, options.tokens, options.repeats) for each in options.ranks]
    fixed = scale_fixed.measure_all(options.ranks, 10 * options.repeats)
    page = render(results, options.tokens, options.machine) + "\n" + render_fixed(fixed)
    print(page)
    if options.markdown is not None:
        options.markdown.write_text(page)


if __name__ == "__main__":
    main()
