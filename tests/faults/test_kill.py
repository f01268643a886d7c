"""``kill -9`` of any rank at any moment: no hang, no wrong number, and the others name it.

Nothing can be left behind: windows are in files that never had a name, which
``engine.rank_work.communicate`` looks at.
"""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from fuscoc_runtime.comm.group import MEETING
from fuscoc_runtime.errors import HopTimeoutError, NetworkError
from fuscoc_runtime.topology import Topology
from tests.engine import specs
from tests.engine.pool import Died, Pool
from tests.faults import kill_work

POLICY = specs.routed("f32", options="balance split slice 200 B")
WAYS = {
    "general": ("general", POLICY),
    "slabs of one size": ("fixed", specs.routed("f32")),
    "slabs": ("exact", specs.routed("f32")),
    "flows": ("exact", POLICY),
}
"""Between nodes, and what opens a shuffle of which spec that goes there."""
TIMEOUT = 10.0
LATEST_SECONDS = {"general": 2.5, "fixed": 6.0, "exact": 6.0}


def kill_one(way: str, topology: str, seed: int) -> None:
    """Shuffle without end on all ranks, and kill one of them some time later."""
    chosen, (engine, text) = random.Random(seed), WAYS[way]
    num_ranks = Topology.parse(topology).num_ranks
    victim, moment = chosen.randrange(num_ranks), chosen.uniform(0, LATEST_SECONDS[engine])
    given = str(specs.artifact(text).path), engine, topology, TIMEOUT
    pool = Pool(num_ranks, [num_ranks])
    pids = [process.pid for process in pool.processes]
    assert all(pid is not None for pid in pids)
    killer = threading.Timer(moment, os.kill, (pids[victim], signal.SIGKILL))
    try:
        # Everything is imported when the clock starts, so that it falls into their work.
        pool.run(kill_work.shuffle_for_ever, num_ranks, *given, 1)
        killer.start()
        outcomes = pool.outcomes(kill_work.shuffle_for_ever, num_ranks, *given)
        assert outcomes[victim] == Died(-signal.SIGKILL)
        for rank, error in enumerate(outcomes):
            if rank == victim or (isinstance(error, NetworkError) and error.operation == MEETING):
                continue  # before they have met, the ranks do not know each other's processes
            assert isinstance(error, HopTimeoutError), f"rank {rank}: {error}"
            assert (error.rank, error.peer) == (rank, victim)
    finally:
        killer.cancel()
        pool.close()


@pytest.mark.parametrize("way", ["general", "slabs of one size"])
def test_a_kill_at_any_moment(way: str) -> None:
    kill_one(way, "2x2", 0)


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("topology", ["2x2", "4x1", "3x2"])
@pytest.mark.parametrize("way", WAYS)
def test_eighty_kills(way: str, topology: str) -> None:
    for seed in range(100, 107):
        kill_one(way, topology, seed)
