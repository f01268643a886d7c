"""``fuscoc doctor``."""

from __future__ import annotations

import click
from click.exceptions import Exit


@click.command()
@click.option("--nccl", is_flag=True, help="Also try NCCL between two GPUs, if there are two.")
@click.option("--json", is_flag=True, help="One JSON document, of docs/doctor.schema.json.")
def doctor(nccl: bool, json: bool) -> None:
    """Look at this machine: what of fuscoc can run here, and why not the rest.

    Versions, GPUs and which of them are peers, compilers, /dev/shm and the cache, the network, and
    the environment variables that matter. What is `ready` works. What is `absent` needs something
    that this machine does not have, such as a GPU. What is `broken` could work here, and the reason
    says what is in the way.

    Libraries and drivers are tried in processes of their own, which end within a minute, even if
    one hangs. Nothing is left on the machine.

    Exit code: 0 if nothing is broken, 1 if something is, 2 if the command line is wrong.

    \b
    Examples:
        fuscoc doctor
        fuscoc doctor --nccl
        fuscoc doctor --json | jq .abilities
    """
    from fuscoc_runtime.doctor.report import examine

    report = examine(nccl=nccl)
    if json:
        click.echo(report.as_json())
    else:
        from fuscoc.tables import show_doctor

        show_doctor(report)
    raise Exit(int(not report.healthy))
