"""``fuscoc plan``."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fuscoc.commands.options import (
    MAX_SEED,
    Define,
    ShuffleName,
    SpecOrArtifact,
    defines_for,
    load_numpy,
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


def plan(
    what: SpecOrArtifact,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the cluster.")] = 1,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Ranks on each node.")] = 8,
    routing: Annotated[
        str,
        typer.Option(help="uniform, single-node, zipf:EXPONENT, imbalanced or a .npy/.npz file."),
    ] = "uniform",
    tokens: Annotated[
        int | None,
        typer.Option(min=0, help="Extent of a rank's outermost index [4096; dense target: 32]."),
    ] = None,
    balance: Annotated[
        Balance | None, typer.Option(help="Who forwards what [as the spec says].")
    ] = None,
    schedule: Annotated[Schedule, typer.Option(help="Stages of the network hop.")] = Schedule.AUTO,
    shuffle: ShuffleName = None,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of a made-up routing.")] = 0,
    nic: Annotated[float, typer.Option(min=0.001, help="GB/s of a rank's NIC.")] = 50.0,
    nvlink: Annotated[float, typer.Option(min=0.001, help="GB/s of a rank's NVLink.")] = 450.0,
    save: Annotated[
        Path | None, typer.Option(help="Write the plan to this .npz file.", dir_okay=False)
    ] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write a page to explore the plan in.", dir_okay=False)
    ] = None,
    define: Define = None,
) -> None:
    """Plan a shuffle for a cluster: rows by hop, NIC loads, stages, predicted times.

    Needs no GPU and no cluster: all ranks are planned in this process, for a routing that is made
    up (uniform, to a single node, Zipf-distributed, imbalanced) or read from a file.

    Exit code: 0, or 1 if the spec has errors or the routing does not fit it, or 2 if the command
    line is wrong.

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
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except BuildError as error:  # of the stages, or of the other policies
        typer.echo(f"error: {NativeBuildError(0, str(error))}", err=True)
        raise typer.Exit(1) from None
