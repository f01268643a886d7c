"""Which rank is to blame, from what can still be seen: processes, and what they announced."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import HashStore

from fuscoc_runtime.comm import liveness, process, watch
from fuscoc_runtime.comm.liveness import Liveness, ProcessId, this_process

NODE = 8


class Store:
    """A store that counts what is asked of it, and whose host can end."""

    def __init__(self) -> None:
        self.store, self.alive, self.calls = HashStore(), True, 0

    def clone(self) -> Store:
        return self

    def __getattr__(self, name: str) -> Any:
        if not self.alive:
            raise RuntimeError("connection reset")
        self.calls += 1
        return getattr(self.store, name)


class Job:
    """``num_ranks`` ranks in nodes of ``NODE``, whose processes are entries of a table: what a look
    at ``/proc`` finds. Every rank has its own ``Liveness``, and time passes in looks."""

    def __init__(self, num_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store, self.looks = Store(), Counter[int]()
        self.running, self.stopped = set(range(num_ranks)), set[int]()
        ids = [ProcessId(f"node {rank // NODE}", rank, "0") for rank in range(num_ranks)]
        monkeypatch.setattr(liveness, "watch", lambda each: None)
        monkeypatch.setattr(liveness, "_beside", _at_once)
        monkeypatch.setattr(Liveness, "_stay", lambda self: None)  # time would pass in it
        monkeypatch.setattr(liveness, "_start_time", self._start_time)
        monkeypatch.setattr(liveness, "LOOK_SECONDS", 0.0)
        monkeypatch.setattr(liveness, "GRACE_SECONDS", 0.2)
        self.ranks = [Liveness(self.store, rank, ids) for rank in range(num_ranks)]  # type: ignore[arg-type]
        self.looks.clear()

    def _start_time(self, pid: int) -> str | None:
        self.looks[pid] += 1
        return "0" if pid in self.running else None

    def look(self) -> None:
        """What the watching threads of all that run do in one period."""
        for rank in sorted(self.running - self.stopped):
            self.ranks[rank].look()

    def kill(self, *ranks: int) -> None:
        self.running -= set(ranks)

    def living(self) -> list[Liveness]:
        return [self.ranks[rank] for rank in sorted(self.running)]

    def asked(self) -> list[bool]:
        """What all that run are told when they wait: in the second of two looks."""
        for each in self.living():
            each.someone_ended()
        return [each.someone_ended() for each in self.living()]


def _at_once(work: Callable[[], None]) -> Thread:
    with suppress(RuntimeError):  # as in its thread
        work()
    ended = Thread()
    ended.start()
    return ended


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Job]:
    return lambda num_ranks: Job(num_ranks, monkeypatch)


def test_a_thousand_ranks(job: Callable[[int], Job]) -> None:
    """All together look twice each a period; one that ends is known everywhere in the next."""
    ranks = job(1024)
    ranks.look()
    assert ranks.looks.total() == 2 * 1024
    assert max(ranks.looks.values()) == 2
    assert ranks.store.calls == 0, "while nobody waits, nobody asks"
    ranks.kill(517)
    ranks.looks.clear()
    ranks.look()
    assert ranks.looks.total() <= 2 * 1024
    assert ranks.asked() == [True] * 1023
    before = ranks.store.calls
    assert [each.find_missing() for each in ranks.living()] == [517] * 1023
    assert ranks.store.calls - before <= 6 * 1024


def test_it_is_named_within_three_seconds() -> None:
    """A neighbour sees it; then one who waits asks, hears of it, and gives it its grace."""
    seen = liveness.LOOK_SECONDS + watch.PERIOD_SECONDS
    heard = 2 * process.LOOK_SECONDS
    assert seen + heard + process.GRACE_SECONDS < 3


@given(st.data())
def test_whoever_ends_is_known(data: st.DataObject) -> None:
    """As long as one rank of its host is left, in whatever order they end; and nobody else is."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        ranks = Job(data.draw(st.integers(2, 20)), monkeypatch)
        everybody = sorted(ranks.running)
        for _ in range(data.draw(st.integers(1, 3))):
            ranks.kill(*data.draw(st.sets(st.sampled_from(everybody))))
            ranks.look()
        dead, hosts = set(everybody) - ranks.running, {rank // NODE for rank in ranks.running}
        known = {rank for rank in dead if rank // NODE in hosts}
        told = ranks.asked()
        for each, is_told in zip(ranks.living(), told, strict=True):
            found = each.find_missing(suspect=-1)
            assert known <= set(each._gone) <= dead
            assert is_told == bool(each._gone) == (found != -1)


def test_who_is_late_is_not_dead(job: Callable[[int], Job]) -> None:
    """However often anybody looks; if it is waited for in vain it is named all the same."""
    ranks = job(16)
    for _ in range(50):
        ranks.look()
        assert not any(ranks.asked())
    assert ranks.ranks[0].find_missing(suspect=9) == 9


@given(st.data())
def test_who_is_stopped_hides_nobody(data: st.DataObject) -> None:
    """While one rank of a host looks, whoever ends there is known after a turn of it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        ranks = Job(2 * NODE, monkeypatch)
        looking = data.draw(st.integers(0, NODE - 1))
        others = set(range(NODE)) - {looking}
        ranks.kill(*data.draw(st.sets(st.sampled_from(sorted(others)))))
        ranks.stopped = others & ranks.running
        for _ in range(NODE):
            ranks.look()
        for each in (ranks.ranks[looking], ranks.ranks[NODE]):
            each.someone_ended()
            assert set(each._gone) == others - ranks.running


def test_a_broken_connection_is_known_before_who_ended(
    job: Callable[[int], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank of another host waits for somebody else: it first hears what is seen there."""
    ranks = job(2 * NODE)
    ranks.kill(3)
    monkeypatch.setattr(liveness, "LOOK_SECONDS", 5.0)
    monkeypatch.setattr(liveness.time, "sleep", lambda _: ranks.ranks[4]._look_at(3))
    assert ranks.ranks[5].find_missing(suspect=NODE) == 3, "of its own host: at once"
    assert ranks.ranks[NODE].find_missing(suspect=0) == 3


def test_who_cannot_be_seen_at_first_is_not_dead(job: Callable[[int], Job]) -> None:
    """Two sandboxes may say that they are one host."""
    ranks = job(2)
    ranks.kill(1)
    blind = Liveness(ranks.store, 0, ranks.ranks[0]._processes)  # type: ignore[arg-type]
    blind.look()
    assert not blind.someone_ended()
    assert blind.find_missing(suspect=-1) == -1


def test_what_is_known_of_who_is_named(job: Callable[[int], Job]) -> None:
    """Whether it has ended, however it did, or is only late."""
    ranks = job(4)
    late = str(ranks.ranks[0].explain("planning", 5.0, "", suspect=2))
    assert late.endswith(
        "rank 0 waited 5 s for rank 2 in the planning hop: is that rank alive, and did it make the "
        "same calls?"
    )
    ranks.kill(3)
    for rank in (0, 1):
        ended = str(ranks.ranks[rank].explain("planning", 5.0, "", suspect=2))
        assert (
            f"rank {rank} waited 5 s for rank 3 in the planning hop: it has ended, or given up:"
            in ended
        )


def test_who_waits_too_is_said_to(job: Callable[[int], Job]) -> None:
    """In what, which tells ranks that make different calls."""
    ranks = job(3)
    first, second = (
        str(ranks.ranks[rank].explain(hop, 5.0, "", suspect=1 - rank))
        for rank, hop in enumerate(("counts", "entering combine"))
    )
    assert "for rank 1 in the counts hop: is that rank alive" in first
    assert "for rank 0 in the entering combine hop: it waits, too, in the counts hop:" in second


def test_who_announced_is_not_to_blame(job: Callable[[int], Job]) -> None:
    """It failed because another had."""
    ranks = job(4)
    assert ranks.ranks[1].find_missing(suspect=3) == 3
    ranks.kill(1, 3)
    ranks.look()
    assert ranks.ranks[0].find_missing(2) == 3


def test_the_first_one_is_to_blame_when_nobody_can_be_asked(job: Callable[[int], Job]) -> None:
    """Others announce themselves and end; then the store's host does, and cannot tell that."""
    ranks = job(4)
    ranks.kill(3)
    ranks.look()
    assert ranks.ranks[0].someone_ended() or ranks.ranks[0].someone_ended()
    ranks.kill(1)
    ranks.store.alive = False
    ranks.look()
    assert ranks.ranks[0].find_missing(1) == 3
    assert ranks.ranks[2].find_missing() == 3


def test_when_the_store_ends_with_its_rank(job: Callable[[int], Job]) -> None:
    """Ranks of its host go through their processes; others do not know whom to blame."""
    ranks = job(12)
    ranks.kill(0)
    ranks.store.alive = False
    assert [ranks.ranks[rank].find_missing() for rank in range(1, 12)] == [0] * 7 + [None] * 4
    assert ranks.ranks[9].find_missing(suspect=2) == 2


def test_when_the_store_ends_before_its_rank(
    job: Callable[[int], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a process ends, whose connections break first."""
    ranks = job(4)
    ranks.store.alive = False
    monkeypatch.setattr(liveness.time, "sleep", lambda _: ranks.kill(0))
    assert ranks.ranks[2].find_missing() == 0


def test_who_has_failed_stays_until_all_are_heard(
    job: Callable[[int], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has announced itself and ended is not counted twice; nobody stays for ever."""
    stay = Liveness._stay
    ranks = job(4)
    ranks.kill(3)
    ranks.look()
    ranks.ranks[1].find_missing(2)
    ranks.kill(1)
    ranks.look()
    ranks.ranks[0].find_missing(2)
    assert ranks.ranks[0]._num_heard() == 3
    ranks.ranks[2].find_missing(1)
    assert ranks.ranks[0]._num_heard() == 4
    monkeypatch.setattr(liveness, "GRACE_SECONDS", 3600.0)
    stay(ranks.ranks[0])
    others = job(2)
    started = time.monotonic()
    stay(others.ranks[0])
    assert time.monotonic() - started >= liveness.GRACE_SECONDS


def test_a_store_that_does_not_answer_keeps_nobody(
    job: Callable[[int], Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the network is gone: what this host knows is told all the same."""
    beside, never = liveness._beside, Event()

    def hang(*_: object) -> None:
        never.wait()
        raise RuntimeError("connection reset")

    ranks = job(4)
    monkeypatch.setattr(liveness, "_beside", beside)
    monkeypatch.setattr(liveness, "SEARCH_SECONDS", 0.2)
    monkeypatch.setattr(ranks.store, "store", SimpleNamespace(set=hang, compare_set=hang))
    ranks.kill(2)
    assert ranks.ranks[0].find_missing() == 2
    assert ranks.ranks[1].find_missing(suspect=3) == 2
    never.set()


def test_a_host_that_ends_is_named_by_its_silence(job: Callable[[int], Job]) -> None:
    """And not the rank that is late: others of its host, which speak, know that it runs. One rank
    searches for all."""
    ranks, late = job(4 * NODE), 2
    ranks.kill(*range(NODE, 2 * NODE))
    ranks.look()
    assert not any(ranks.asked())
    found: dict[int, int | None] = {}

    def fail(rank: int) -> None:
        found[rank] = ranks.ranks[rank].find_missing()

    failing = ranks.running - {late}
    threads = [Thread(target=fail, args=(rank,)) for rank in failing]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == dict.fromkeys(failing, NODE)
    assert ranks.store.store.add("searches", 0) == len(failing)
    ranks.running |= set(range(NODE, 2 * NODE))
    assert ranks.ranks[NODE].find_missing() is None, "it was late, and knows of nobody else"


def test_nobody_is_to_blame_where_all_wait(job: Callable[[int], Job]) -> None:
    ranks = job(3)
    for each in ranks.ranks[1:]:
        each.find_missing(suspect=0)
    assert ranks.ranks[0].find_missing() is None


def test_two_boards_written_at_once(job: Callable[[int], Job]) -> None:
    ranks = job(2 * NODE)
    threads = [Thread(target=each._post, args=(rank,)) for rank, each in enumerate(ranks.ranks)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    written = ranks.store.get("ended").decode().split()
    assert sorted(map(int, written)) == list(range(2 * NODE))


def _wait_until(holds: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _members(others: Sequence[ProcessId]) -> Liveness:
    return Liveness(HashStore(), 0, [this_process(), *others])


def test_processes_of_this_host_and_of_others() -> None:
    """Really: a thread looks. What ends here has only the number of the process there."""
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        here = replace(this_process(), pid=started.pid)
        here = replace(here, start_time=liveness._start_time(started.pid) or "")
        there = replace(here, table="elsewhere")
        near, far = _members([here]), _members([there])
        assert not near.someone_ended()
    finally:
        started.kill()
        started.wait()
    _wait_until(near.someone_ended)
    assert near.find_missing() == 1
    assert not far.someone_ended()


def test_what_ends_after_closing_is_nobodys_concern(monkeypatch: pytest.MonkeyPatch) -> None:
    other = this_process()
    closed, watched = _members([other]), _members([other])
    closed.close()
    monkeypatch.setattr(liveness, "_start_time", lambda pid: None)
    _wait_until(watched.someone_ended)
    assert not closed._gone


ENDS_WHILE_A_THREAD_WAITS = """
import time
from datetime import timedelta
from torch._C._distributed_c10d import HashStore
from fuscoc_runtime.comm import liveness

class Lingering:  # until the thread is back from C++, where nothing else would take so long
    def __del__(self, sleep=time.sleep):
        sleep(1)

lingering, store = Lingering(), HashStore()
liveness._beside(lambda: store.wait(["never"], timedelta(seconds=0.3)))
"""


def test_a_process_may_end_while_a_thread_waits_for_the_store() -> None:
    done = subprocess.run([sys.executable, "-c", ENDS_WHILE_A_THREAD_WAITS], capture_output=True)
    assert done.returncode == 0, done.stderr


FORKED_WHILE_IT_LOOKS = """
import os
from fuscoc_runtime.comm import liveness, watch

class Watched:
    def look(self): pass

watched = Watched()
watch.watch(watched)
watch._lock.acquire()
child = os.fork()
if child:
    watch._lock.release()
    raise SystemExit(os.waitpid(child, 0)[1])
assert watched not in watch._watched
watch.watch(Watched())
"""


def test_a_forked_process_looks_after_its_own_whatever_the_watch_was_doing() -> None:
    command = [sys.executable, "-c", FORKED_WHILE_IT_LOOKS]
    done = subprocess.run(command, capture_output=True, timeout=60)
    assert done.returncode == 0, done.stderr


ONE_OF_FOUR = """
import json, os, sys, time
from dataclasses import asdict, replace
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
from fuscoc_runtime.comm.liveness import Liveness, ProcessId, this_process

rank, port, late = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
store = TCPStore("127.0.0.1", port, 4, rank == 0, timedelta(seconds=60), wait_for_workers=False)
store.set(f"process/{rank}", json.dumps(asdict(replace(this_process(), table=f"host {rank // 2}"))))
processes = [ProcessId(**json.loads(store.get(f"process/{peer}"))) for peer in range(4)]
liveness = Liveness(store, rank, processes)
store.add("ready", 1)
while store.add("ready", 0) < 4:
    time.sleep(0.01)
print("ready", flush=True)
while not liveness.someone_ended():
    time.sleep(0.01)
time.sleep(late)
print(liveness.explain("network", 1.0, "broken", (rank + 2) % 4).peer, flush=True)
"""


def test_the_first_of_four_is_named_by_those_who_fail_after_rank_0_has() -> None:
    """Really: rank 0 has the store, and ends when it has named rank 1. The ranks of the other host,
    which cannot see either of them, fail a second later."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_OF_FOUR, str(rank), str(port), str(rank // 2)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(4)
    ]
    try:
        for each in ranks:
            assert each.stdout is not None
            assert each.stdout.readline() == "ready\n"
        ranks[1].kill()
        outputs = {rank: ranks[rank].communicate(timeout=60)[0] for rank in (0, 2, 3)}
    finally:
        for each in ranks:
            each.kill()
    assert outputs == dict.fromkeys((0, 2, 3), "1\n")
    assert [ranks[rank].returncode for rank in outputs] == [0] * 3
