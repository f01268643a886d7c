"""``fuscoc plan``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import click
from click.exceptions import Exit

from fuscoc.commands.options import (
    OUTPUT_FILE,
    SEED,
    Number,
    OneOf,
    define_option,
    defines_for,
    load_numpy,
    shuffle_option,
    spec_or_artifact_argument,
    tokens_option,
)


class Balance(StrEnum):
    """``plan --balance``: who forwards what crosses the network."""

    NONE = "none"
    STATIC = "static"
    GREEDY = "greedy"
    LPT = "lpt"
    SPLIT = "split"
    REBALANCE = "rebalance"
    AUTO = "auto"


class Schedule(StrEnum):
    """``plan --schedule``: in which stages it crosses."""

    PAIRWISE = "pairwise"
    SPREAD_OUT = "spread-out"
    FAST = "fast"
    AUTO = "auto"


@click.command()
@spec_or_artifact_argument
@click.option("--nodes", type=click.IntRange(min=1), default=1, help="Nodes of the cluster.")
@click.option("--gpus-per-node", type=click.IntRange(min=1), default=8, help="Ranks on each node.")
@click.option(
    "--routing",
    default="uniform",
    help="uniform, single-node, zipf:EXPONENT, imbalanced or a .npy/.npz file.",
)
@tokens_option
@click.option("--balance", type=OneOf(Balance), help="Who forwards what [as the spec says].")
@click.option(
    "--schedule",
    type=OneOf(Schedule),
    default=Schedule.AUTO.value,
    help="Stages of the network hop.",
)
@shuffle_option
@click.option("--seed", type=SEED, default=0, help="Seed of a made-up routing.")
@click.option("--nic", type=Number(min=0.001), default=50.0, help="GB/s of a rank's NIC.")
@click.option("--nvlink", type=Number(min=0.001), default=450.0, help="GB/s of a rank's NVLink.")
@click.option("--save", type=OUTPUT_FILE, help="Write the plan to this .npz file.")
@click.option("--html", type=OUTPUT_FILE, help="Write a page to explore the plan in.")
@define_option
def plan(
    what: Path,
    nodes: int,
    gpus_per_node: int,
    routing: str,
    tokens: int | None,
    balance: Balance | None,
    schedule: Schedule,
    shuffle: str | None,
    seed: int,
    nic: float,
    nvlink: float,
    save: Path | None,
    html: Path | None,
    define: tuple[str, ...],
) -> None:
    """Plan a shuffle for a cluster: rows by hop, NIC loads, stages, predicted times.

    Needs no GPU and no cluster: all ranks are planned in this process, for a routing that is made
    up (uniform, to a single node, Zipf-distributed, imbalanced) or read from a file.

    Exit code: 0, or 1 if the spec has errors or the routing does not fit it, or 2 if the command
    line is wrong.

    \b
    Examples:
        fuscoc plan examples/moe.fsc --nodes 4 --gpus-per-node 8 --routing zipf:1.0
        fuscoc plan build/moe --nodes 2 --balance lpt --html plan.html
        fuscoc plan moe.fsc --nodes 4 --routing topk_idx.npy --save plan.npz
    """
    load_numpy()
    from fuscoc.planning import command
    from fuscoc_runtime import Topology
    from fuscoc_runtime.errors import FuscoRuntimeError, NativeBuildError
    from fuscoc_runtime.plan.native import BuildError

    try:
        options = command.PlanOptions(
            topology=Topology(nodes, gpus_per_node),
            routing=routing,
            tokens=tokens,
            balance=balance.value if balance is not None else None,
            schedule=schedule.value,
            seed=seed,
            nic_bandwidth=nic * 1e9,
            nvlink_bandwidth=nvlink * 1e9,
            save=save,
            html=html,
        )
        command.run(what, shuffle, defines_for(what, define), options)
    except (FuscoRuntimeError, command.RoutingError, command.MissingExtraError) as error:
        click.echo(f"error: {error}", err=True)
        raise Exit(1) from None
    except BuildError as error:  # of the stages, or of the other policies
        click.echo(f"error: {NativeBuildError(0, str(error))}", err=True)
        raise Exit(1) from None
