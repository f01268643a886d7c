"""Where a node's ranks wait for each other on their devices, and all ranks agree on their hosts."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from fuscoc_runtime.comm.requests import HeldWindows, Phase, Request, Window
from fuscoc_runtime.engine.buffers import SIGNALS
from fuscoc_runtime.engine.machine import Machine
from fuscoc_runtime.engine.steps import launch_empty
from fuscoc_runtime.errors import FuscoRuntimeError
from fuscoc_runtime.plan.agree import agree


def meet(
    machine: Machine,
    error: FuscoRuntimeError | None,
    call: str,
    word: int = 0,
    meanwhile: Callable[[], None] | None = None,
) -> Generator[Request, Any, list[int]]:
    """``agree`` on a ``call``, such as "a combine", after which none of the node's ranks is still
    at work on its windows when what is enqueued on the current stream begins. The host does not
    wait for the device: ranks agree while that is still at work on what comes before.
    """
    held = yield HeldWindows()
    # Where calls have ended when they return, agreeing is a meeting by itself. Without windows
    # there is no earlier call.
    if machine.is_asynchronous and machine.num_peers > 1 and SIGNALS in held:
        yield from meet_node(machine, held[SIGNALS])
    return (yield from agree(error, word, meanwhile, f"{call} of `{machine.shuffle.name}`"))


def meet_node(machine: Machine, signals: Window) -> Generator[Request, Any, None]:
    """Let the current stream wait until those of the node's ranks have got here: one step of
    dispatch signals over nothing, and the last one, which waits for it, waits over nothing."""
    launches = machine.shuffle.program.dispatch.launches
    waiting = launches[-1]  # for what peers have stored into the target
    [signalling, *_] = (step for step in launches if step.signal in waiting.wait)
    launch_empty(machine, signalling, signals, machine.num_programs)
    yield Phase(waiting.kernel)
    launch_empty(machine, waiting, signals, 1)
