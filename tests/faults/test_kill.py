"""``kill -9`` of any rank at any moment: no hang, and the others name it.

Nothing can be left behind: windows are in files that never had a name, which
``rank_work.communicate`` looks at.
"""

from __future__ import annotations

import os
import random
import signal
import threading

import pytest

from fuscoc_runtime.comm.group import MEETING
from fuscoc_runtime.errors import HopTimeoutError, NetworkError
from tests.engine import rank_work, specs
from tests.engine.pool import Died, Pool

SLICED = specs.routed("f32", options="balance split slice 200 B")
NUM_RANKS, TOPOLOGY, TIMEOUT = 4, "2x2", 10.0
LATEST_SECONDS = 2.5


def kill_one(seed: int) -> None:
    """Shuffle without end on four ranks, and kill one of them some time later."""
    chosen = random.Random(seed)
    victim, moment = chosen.randrange(NUM_RANKS), chosen.uniform(0, LATEST_SECONDS)
    artifact = str(specs.artifact(SLICED).path)
    pool = Pool(NUM_RANKS)
    pids = [process.pid for process in pool.processes]
    assert all(pid is not None for pid in pids)
    killer = threading.Timer(moment, os.kill, (pids[victim], signal.SIGKILL))
    try:
        # Everything is imported when the clock starts, so that it falls into their work.
        pool.run(rank_work.describe, NUM_RANKS, artifact)
        killer.start()
        outcomes = pool.outcomes(rank_work.shuffle_for_ever, NUM_RANKS, artifact, TOPOLOGY, TIMEOUT)
        assert outcomes[victim] == Died(-signal.SIGKILL)
        for rank, error in enumerate(outcomes):
            if rank == victim or (isinstance(error, NetworkError) and error.operation == MEETING):
                continue  # before they have met, the ranks do not know each other's processes
            assert isinstance(error, HopTimeoutError), f"rank {rank}: {error}"
            assert (error.rank, error.peer) == (rank, victim)
    finally:
        killer.cancel()
        pool.close()


def test_a_kill_at_any_moment() -> None:
    kill_one(0)


@pytest.mark.nightly
def test_twenty_kills() -> None:
    for seed in range(100, 120):
        kill_one(seed)
