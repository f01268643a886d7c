"""A plan as tables in a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from fuscoc.planning.compare import compare_policies, compare_schedules
from fuscoc.tables import titled_table
from fuscoc_runtime.plan import Plan
from fuscoc_runtime.plan.summary import PlanSummary, human_bytes, human_seconds


def show(plan: Plan, routing: str, console: Console) -> None:
    """Print hops, NIC loads, and what other policies and schedules are predicted to take."""
    summary = plan.summary()
    console.print(
        f"[bold]{summary.shuffle}[/] on {summary.topology}, {routing}: "
        f"{summary.num_segments:,} segments of {human_bytes(summary.segment_bytes)} "
        f"to {summary.num_points:,} slots"
    )
    console.print(hop_table(summary))
    if plan.topology.num_nodes > 1:
        console.print(nic_table(plan))
        console.print(policy_table(plan))
        console.print(schedule_table(plan))
    console.print(
        f"predicted [bold]{human_seconds(summary.predicted)}[/]; "
        f"no plan can beat {human_seconds(summary.oracle)} on these NICs"
    )


def hop_table(summary: PlanSummary) -> Table:
    """Rows and bytes by hop, beside those of a plain all-to-all of every point."""
    table = titled_table("Hops", ["hop"], ["rows", "bytes", "rows of a plain all-to-all", "saved"])
    for hop in summary.hops:
        saved = f"{hop.saved:.0%}" if hop.saved > 0 else ""
        table.add_row(
            hop.hop, f"{hop.rows:,}", human_bytes(hop.bytes), f"{hop.rows_before:,}", saved
        )
    return table


def nic_table(plan: Plan) -> Table:
    """Rows of the NICs of every node: the mean, and the busiest before and after balancing."""
    columns = ["sent, mean", "busiest", "received, mean", "busiest"]
    title = f"NIC load, rows (busiest without → with balance {plan.rules.forwarder})"
    table = titled_table(title, ["node"], columns)
    shape = plan.topology.num_nodes, plan.topology.ranks_per_node
    network, unbalanced = plan.traffic.network, plan.traffic.unbalanced().network
    for node in range(plan.topology.num_nodes):
        cells = []
        for axis in (1, 0):
            before, after = (
                rows.sum(axis=axis).reshape(shape)[node] for rows in (unbalanced, network)
            )
            cells += [f"{after.mean():,.0f}", f"{int(before.max()):,} → {int(after.max()):,}"]
        table.add_row(str(node), *cells)
    return table


def policy_table(plan: Plan) -> Table:
    """Predicted times of every policy."""
    columns = ["busiest NIC", "cuts", "handed over", "predicted", "over oracle"]
    title = "Balance policies, with the stages that follow"
    table = titled_table(title, ["balance"], columns)
    rows = compare_policies(plan)
    for row in rows:
        over = row.staged / plan.oracle if plan.oracle else 1.0
        table.add_row(
            _name(row.policy, row.chosen),
            f"{row.busiest_nic:,}",
            str(row.cuts),
            f"{row.handed:,}",
            human_seconds(row.staged),
            f"{over:.2f}",
            style="bold" if row.chosen else None,
        )
    return table


def schedule_table(plan: Plan) -> Table:
    """Stages and predicted times of every schedule."""
    table = titled_table("Schedules", ["schedule"], ["stages", "predicted", "over the oracle"])
    for row in compare_schedules(plan):
        over = row.seconds / plan.oracle if plan.oracle else 1.0
        table.add_row(
            _name(row.kind, row.chosen),
            str(row.schedule.num_stages),
            human_seconds(row.seconds),
            f"{over:.2f}",
            style="bold" if row.chosen else None,
        )
    return table


def _name(name: str, chosen: bool) -> str:
    return f"{name}{' (this plan)' if chosen else ''}"
