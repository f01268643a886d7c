"""The report of ``fuscoc plan --html``: one file that needs no other, and no network."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jinja2

from fuscoc.planning import figures
from fuscoc.planning.compare import compare_policies, compare_schedules
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


TEMPLATE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ summary.shuffle }} on {{ summary.topology }}: fuscoc plan</title>
<style>
  :root { color-scheme: light; --ink: #1b2430; --soft: #5a6675; --rule: #dfe3e8; --mark: #1f5fa8; }
  body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 66rem; background: #fff;
         color: var(--ink); font: 1rem/1.5 system-ui, "Helvetica Neue", Arial, sans-serif; }
  h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
  h2 { font-size: 1.15rem; margin: 2.4rem 0 .5rem; }
  .lead, figcaption, .note { color: var(--soft); max-width: 46rem; margin: .2rem 0; }
  figcaption, .note { font-size: .92rem; }
  dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .75rem;
       margin: 1.5rem 0 0; }
  dl div { border-top: 3px solid var(--mark); padding-top: .45rem; }
  dt { color: var(--soft); font-size: .9rem; }
  dd { margin: 0; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
  dd small { display: block; font-size: .88rem; color: var(--soft); }
  table { border-collapse: collapse; font-variant-numeric: tabular-nums; width: 100%; }
  .pair { display: grid; gap: 0 2.5rem;
          grid-template-columns: repeat(auto-fit, minmax(26rem, 1fr)); }
  th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--rule); }
  th { font-weight: 600; font-size: .9rem; color: var(--soft); vertical-align: bottom; }
  th:first-child, td:first-child { text-align: left; padding-left: 0; }
  tr.chosen td { font-weight: 650; color: var(--mark); }
  figure { margin: 0; overflow-x: auto; }
  img { max-width: 100%; height: auto; display: block; }
</style>
</head>
<body>
<main>
<h1>{{ summary.shuffle }} on {{ summary.topology }}</h1>
<p class="lead">{{ "{:,}".format(summary.num_segments) }} segments of
{{ summary.segment_bytes | bytes }} to {{ "{:,}".format(summary.num_points) }} slots; routing
{{ routing }}, balance {{ summary.balance }}. Predicted for {{ model.nic_bandwidth / 1e9 }} GB/s of
NIC and {{ model.nvlink_bandwidth / 1e9 }} GB/s of NVLink a rank and direction.</p>

<dl>
  <div><dt>Predicted dispatch</dt><dd>{{ summary.predicted | seconds }}
    <small>no plan can beat {{ summary.oracle | seconds }}</small></dd></div>
  <div><dt>Network rows saved</dt><dd>{{ "{:.0%}".format(summary.network.saved) }}
    <small>{{ summary.network.bytes | bytes }} are left</small></dd></div>
  <div><dt>Busiest NIC over the mean</dt><dd>{{ "{:.2f}".format(summary.nic.imbalance) }}
    <small>{{ "{:.2f}".format(summary.nic_before.imbalance) }} before balancing</small></dd></div>
  <div><dt>Stages</dt><dd>{{ summary.num_stages if summary.num_stages is not none else "none" }}
    <small>{{ summary.schedule or "all nodes send at once" }}</small></dd></div>
</dl>

<h2>Hops</h2>
<table>
<thead><tr><th scope="col">Hop</th><th scope="col">Rows</th><th scope="col">Bytes</th>
<th scope="col">Rows of a plain all-to-all</th><th scope="col">Saved</th></tr></thead>
<tbody>
{% for hop in summary.hops %}
<tr><td>{{ hop.hop }}</td><td>{{ "{:,}".format(hop.rows) }}</td><td>{{ hop.bytes | bytes }}</td>
<td>{{ "{:,}".format(hop.rows_before) }}</td>
<td>{{ "{:.0%}".format(hop.saved) if hop.saved > 0 else "" }}</td></tr>
{% endfor %}
</tbody>
</table>

{% for picture in pictures %}
<h2>{{ picture.title }}</h2>
<figure>
<img src="{{ picture.source }}" alt="{{ picture.alt }}">
<figcaption>{{ picture.caption }}</figcaption>
</figure>
{% endfor %}

{% if policies %}
<div class="pair">
<section>
<h2>Balance policies</h2>
<table>
<thead><tr><th scope="col">Policy</th><th scope="col">Busiest NIC, rows</th>
<th scope="col">Predicted</th><th scope="col">Over the oracle</th></tr></thead>
<tbody>
{% for row in policies %}
<tr{% if row.chosen %} class="chosen"{% endif %}>
<td>{{ row.policy }}{{ " (this plan)" if row.chosen }}</td>
<td>{{ "{:,}".format(row.busiest_nic) }}</td><td>{{ row.seconds | seconds }}</td>
<td>{{ "{:.2f}".format(row.seconds / summary.oracle if summary.oracle else 1) }}</td></tr>
{% endfor %}
</tbody>
</table>
<p class="note">All nodes sending at once, as if without incast.</p>
</section>
<section>
<h2>Schedules</h2>
<table>
<thead><tr><th scope="col">Schedule</th><th scope="col">Stages</th>
<th scope="col">Predicted</th><th scope="col">Over the oracle</th></tr></thead>
<tbody>
{% for row in schedules %}
<tr{% if row.chosen %} class="chosen"{% endif %}>
<td>{{ row.kind }}{{ " (this plan)" if row.chosen }}</td>
<td>{{ row.num_stages }}</td><td>{{ row.seconds | seconds }}</td>
<td>{{ "{:.2f}".format(row.seconds / summary.oracle if summary.oracle else 1) }}</td></tr>
{% endfor %}
</tbody>
</table>
<p class="note">With this plan's forwarders, stage after stage.</p>
</section>
</div>
{% endif %}
</main>
</body>
</html>
"""
