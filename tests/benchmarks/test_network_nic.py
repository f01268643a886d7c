"""The NIC that ``benchmarks/network_nic.c`` gives a process, looked at from inside one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.network_wire import compile_nic

RATE = 0.01  # GB/s, less than the slowest machine moves by itself
BUCKET_SECONDS = 500e-6
MOST_BYTES = 128 << 10

MOVE = """
import os, socket, sys, time
near, far = socket.socketpair()
limited = sys.argv[1]
flags, total = socket.MSG_DONTWAIT, 1 << 20
moved = refused = 0
started = time.monotonic()
while moved < total:
    # os.read and os.write are none of the library's calls.
    try:
        if limited == "send":
            done = near.send(bytes(32 << 10), flags)
            os.read(far.fileno(), done)
        else:
            os.write(far.fileno(), bytes(32 << 10))
            done = len(near.recv(32 << 10, flags))
    except BlockingIOError:
        refused += 1
        if limited == "recv":
            os.read(near.fileno(), 32 << 10)
        near.send(b"small", flags)  # passes all the same
        os.read(far.fileno(), 5)
        time.sleep(1e-4)
        continue
    moved += done
print(moved, refused, time.monotonic() - started)
"""


@pytest.fixture(scope="module")
def nic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_nic(tmp_path_factory.mktemp("nic") / "nic.so")


def move(nic: Path, way: str, rate: float) -> tuple[int, int, float]:
    variables = os.environ | {"LD_PRELOAD": str(nic), "NIC_GB_PER_SECOND": str(rate)}
    done = subprocess.run(
        [sys.executable, "-c", MOVE, way], env=variables, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    moved, refused, seconds = done.stdout.split()
    return int(moved), int(refused), float(seconds)


@pytest.mark.parametrize("way", ["send", "recv"])
def test_a_process_moves_no_more_than_its_nic(nic: Path, way: str) -> None:
    moved, refused, seconds = move(nic, way, RATE)
    in_bucket = BUCKET_SECONDS * RATE * 1e9 + MOST_BYTES
    assert moved - in_bucket <= seconds * RATE * 1e9
    assert refused


@pytest.mark.parametrize("way", ["send", "recv"])
def test_without_a_rate_nothing_is_refused(nic: Path, way: str) -> None:
    assert move(nic, way, 0)[1] == 0
