"""Which rank is to blame, from what can still be seen: processes, and what they announced."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch._C._distributed_c10d import HashStore

from fuscoc_runtime.comm import liveness
from fuscoc_runtime.comm.liveness import Liveness, ProcessId, this_process


class Store:
    """A store whose host can end."""

    def __init__(self) -> None:
        self.store, self.alive = HashStore(), True

    def __getattr__(self, name: str) -> Any:
        if not self.alive:
            raise RuntimeError("connection reset")
        return getattr(self.store, name)


@pytest.fixture
def others() -> Iterator[list[subprocess.Popen[bytes]]]:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    started = [subprocess.Popen(command) for _ in range(3)]
    yield started
    for process in started:
        process.kill()
        process.wait()


def rank_0(store: Store, others: list[subprocess.Popen[bytes]]) -> Liveness:
    me = this_process()
    ids = [ProcessId(me.hostname, each.pid, _start_time(each)) for each in others]
    return Liveness(store, 0, [me, *ids])  # type: ignore[arg-type]


def _start_time(process: subprocess.Popen[bytes]) -> str:
    return liveness._start_time(process.pid) or ""


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def test_who_announced_is_not_to_blame(others: list[subprocess.Popen[bytes]]) -> None:
    store = Store()
    found = rank_0(store, others)
    assert not found.someone_ended()
    store.store.set("waiting/1", "waiting")
    end(others[0])
    end(others[2])
    assert found.someone_ended()
    assert found.find_missing(2) == 3


def test_the_first_one_is_to_blame_when_nobody_can_be_asked(
    others: list[subprocess.Popen[bytes]],
) -> None:
    """Others announce themselves and end; then the store's host does, and cannot tell that."""
    store = Store()
    found = rank_0(store, others)
    end(others[2])
    assert found.someone_ended()
    store.store.set("waiting/1", "waiting")
    end(others[0])
    store.alive = False
    assert found.find_missing(1) == 3


def test_other_hosts_are_not_looked_at(others: list[subprocess.Popen[bytes]]) -> None:
    """What ends here has only the number of the process there."""
    here = ProcessId(this_process().hostname, others[0].pid, _start_time(others[0]))
    there = replace(here, hostname="elsewhere")
    found = Liveness(HashStore(), 0, [this_process(), there])
    end(others[0])
    assert not found.someone_ended()
    assert Liveness(HashStore(), 0, [this_process(), here]).has_ended(1)


def test_a_suspect_where_everybody_is_alive(others: list[subprocess.Popen[bytes]]) -> None:
    assert rank_0(Store(), others).find_missing(2) == 2
