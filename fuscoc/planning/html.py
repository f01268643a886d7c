"""The report of ``fuscoc plan --html``: one file that needs no other, and no network."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jinja2

from fuscoc.planning import figures
from fuscoc.planning.compare import compare_policies, compare_schedules
from fuscoc.planning.template import TEMPLATE
from fuscoc_runtime.files import whole_file
from fuscoc_runtime.plan import Plan
from fuscoc_runtime.plan.summary import human_bytes, human_seconds


@dataclass(frozen=True)
class Picture:
    """``source``: the SVG as a data URI; ``alt``: what it shows, for those who cannot see it."""

    title: str
    source: str
    alt: str
    caption: str


def write_html(plan: Plan, routing: str, path: Path) -> None:
    """Draw ``plan`` and write the report; ``routing`` says what was planned for."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"bytes": human_bytes, "seconds": human_seconds}
    network = plan.topology.num_nodes > 1
    text = environment.from_string(TEMPLATE).render(
        summary=plan.summary(),
        routing=routing,
        model=plan.model,
        policies=compare_policies(plan) if network else [],
        schedules=compare_schedules(plan) if network else [],
        pictures=list(_pictures(plan)),
    )
    with whole_file(path) as file:
        file.write(text.encode())


def _pictures(plan: Plan) -> Iterator[Picture]:
    yield Picture(
        "From rank to rank",
        _uri(figures.rank_maps(plan)),
        "Heat maps of the bytes that every rank sends every other, before and after deduplication "
        "and balancing.",
        "Outside the nodes' blocks: the network, from sources to forwarders. In the blocks: "
        "NVLink, and a rank's own memory on the diagonal. Deduplication moves traffic from the "
        "network into the nodes.",
    )
    if plan.topology.num_nodes == 1:
        return
    yield Picture(
        "From node to node",
        _uri(figures.node_maps(plan)),
        "Heat maps of the bytes that every node sends every other, before and after deduplication.",
        "Over the network only. Balancing changes who carries this, not how much it is.",
    )
    yield Picture(
        "Load of every NIC",
        _uri(figures.nic_bars(plan)),
        "Bars of the bytes that every NIC sends, and receives before and after balancing.",
        "Forwarders decide who receives; sources send their own rows. The busiest NIC decides when "
        "the network is done.",
    )
    if plan.schedule is not None and plan.schedule.num_stages:
        yield Picture(
            f"Stages: {plan.schedule.kind}",
            _uri(figures.gantt(plan)),
            "Gantt chart of the stages: which node sends to which, and when.",
            "Each block carries the number of the node that it goes to. No node receives from two "
            "others in one stage.",
        )


def _uri(svg: str) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
