"""What the tests of exact sizes let ranks of several nodes do, beside what
`node_exact/rank_work.py` has; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import product
from typing import Any
from unittest import mock

import torch

from fuscoc_runtime.engine.handle import Handle
from fuscoc_runtime.engine.node import exact_rails, flow_rails, places, slabs
from fuscoc_runtime.engine.node.exact_rails import ExactRails
from fuscoc_runtime.engine.node.flow_rails import FlowRails
from fuscoc_runtime.engine.node.rail_calls import RailCalls
from fuscoc_runtime.engine.node.rails import RailNode
from fuscoc_runtime.engine.node.report import Report
from fuscoc_runtime.engine.node.state import Limits
from fuscoc_runtime.engine.node.static_engine import StaticEngine
from fuscoc_runtime.errors import PreparationError
from fuscoc_runtime.face.choice import static_sources
from fuscoc_runtime.face.shuffle import Shuffle
from tests.node_exact import rank_work
from tests.node_exact.rank_work import HIDDEN, KEYS, by_slot, close, data_of, summed
from tests.node_triton.rank_work import batch, run, said_by
from tests.rails.rail_work import last_ends, several_hosts, under_way


def open_shuffle(group: Any, artifact: str, topology: str, **options: Any) -> Shuffle:
    """With places for a few segments at first, unless ranks alone decide how many there are."""
    with mock.patch.object(places, "FIRST_SOURCES", 1):
        shuffle = rank_work.open_shuffle(group, artifact, topology=topology, **options)
    node, given = shuffle.engine.node, shuffle.topology
    is_static = isinstance(static_sources(shuffle.spec, given), int)
    assert isinstance(shuffle.engine, StaticEngine) == is_static
    kind = RailNode if is_static else ExactRails
    assert isinstance(node, kind) == (given.num_nodes > 1)
    assert isinstance(node, FlowRails) == (not is_static and given.num_nodes > 1)
    return shuffle


def open_in_rounds(group: Any, artifact: Any, topology: str, **options: Any) -> Shuffle:
    """The same, whose slabs travel in several rounds if they have places for more than one, as long
    as these are as many as at first."""
    with several_hosts():
        shuffle = open_shuffle(group, artifact, topology, **options)
        node = shuffle.engine.node
        if isinstance(node, ExactRails):
            node._calls_of(node._places)  # a first call would divide them
    return shuffle


def with_few_places(group: Any, *arguments: Any, work: Callable[..., Any], **options: Any) -> Any:
    """Work of the tests inside one node, whose slabs have few places at first."""
    with mock.patch.object(places, "FIRST_SOURCES", 1):
        return work(group, *arguments, **options)


def sizes(
    group: Any, artifact: str, topology: str, batches: Sequence[Sequence[int]], seed: int
) -> list[int]:
    """Calls of these sizes, verified; how often the dispatch of each has been launched."""
    shuffle = open_shuffle(group, artifact, topology)
    node = shuffle.engine.node
    counted = []
    for number, each in enumerate(batches):
        with counts(RailCalls, "dispatch") as launched:
            run(shuffle, batch(shuffle.spec, each, seed + number), combines=1)
        counted.append(len(launched))
    shuffle.check()
    assert under_way(node.rails) == 0
    shuffle.close()
    return counted


@contextmanager
def counts(kind: type, name: str) -> Iterator[list[Any]]:
    """Calls of a method meanwhile."""
    calls: list[Any] = []
    method = getattr(kind, name)

    def noted(*arguments: Any, **named: Any) -> Any:
        calls.append(arguments)
        return method(*arguments, **named)

    with mock.patch.object(kind, name, noted):
        yield calls


def one_window(group: Any, artifact: str, topology: str) -> tuple[int, int]:
    """More rows than there is room for go to the last rank alone: how often windows have grown here
    for it, and how often this rank has launched the dispatch."""
    shuffle = open_shuffle(group, artifact, topology)
    shuffle.dispatch(**data_of(shuffle.rank, 1))
    given = data_of(shuffle.rank, 8)
    given["idx"] = torch.full_like(given["idx"], KEYS - 1)
    with counts(RailCalls, "dispatch") as launched, counts(ExactRails, "_grow") as grown:
        rows, handle = shuffle.dispatch(**given)
    close(shuffle.combine(by_slot(rows, handle), handle), summed(given))
    shuffle.check()
    assert under_way(shuffle.engine.node.rails) == 0
    return len(grown), len(launched)


def rounds(group: Any, artifact: str, topology: str, batches: Any) -> int:
    """Calls whose slabs travel in several rounds, between ranks that say they are of several hosts;
    in how many those of the last one did."""
    with several_hosts():
        shuffle = open_shuffle(group, artifact, topology)
        for number, each in enumerate(batches):
            run(shuffle, batch(shuffle.spec, each, number), combines=1)
        return int(shuffle.engine.node.num_rounds)


def waits(group: Any, artifact: str, topology: str) -> list[int]:
    """How often the host waits for counts: in a first dispatch, one whose size is known, combines
    with weights of dispatch and with others, and a dispatch along a known routing."""
    shuffle = open_shuffle(group, artifact, topology)
    given = data_of(shuffle.rank, 5)
    found = []

    def call(make: Callable[[], Any]) -> Any:
        with counts(Report, "wait") as waited, counts(ExactRails, "_meet") as met:
            made = make()
        found.append(len(waited) if not met else -1)
        return made

    shuffle.dispatch(**given)
    rows, handle = call(lambda: shuffle.dispatch(**given))
    close(call(lambda: shuffle.combine(by_slot(rows, handle), handle)), summed(given))
    _, again = call(lambda: shuffle.dispatch(given["x"], handle=handle))
    late = {"weights": given["weights"] * 2}
    close(call(lambda: shuffle.combine(by_slot(rows, again), again, **late)), 2 * summed(given))
    return found


def late_weights(group: Any, artifact: str, topology: str) -> None:
    """Weights that come with combine, of segments of two indices, the inner one of two."""
    shuffle = open_shuffle(group, artifact, topology)
    for number in range(2):
        given = data_of(shuffle.rank, 4, number)
        by_two = {name: each.view(2, 2, *each.shape[1:]) for name, each in given.items()}
        late = {"weights": by_two.pop("weights")}
        rows, handle = shuffle.dispatch(**by_two)
        found = shuffle.combine(by_slot(rows, handle), handle, **late)
        close(found.flatten(0, 1), summed(given))
    shuffle.check()


def too_large(group: Any, artifact: str, topology: str) -> list[type]:
    """Calls whose rows slabs do not carry, which travel as flows, and one that these do not carry,
    which is the general engine's, on all ranks; what their handles know. Later calls along all of
    them are whole."""
    shuffle = open_shuffle(group, artifact, topology)
    rank, kinds, held = shuffle.rank, [], []
    sizes = shuffle.engine.node._sizes
    most = {
        "MOST_SENT": sizes._sent(sizes.size_of(20)),
        "MOST_FLOWING": sizes._sent(sizes.size_of(60)),
    }
    for number, tokens in enumerate([3, 33 if rank == 0 else 2, 65 if rank == 0 else 1, 4, 4, 33]):
        given = data_of(rank, tokens, number)
        with mock.patch.multiple(places, **most):
            rows, handle = shuffle.dispatch(**given)
            close(shuffle.combine(by_slot(rows, handle), handle), summed(given))
            kinds.append(Handle if isinstance(handle, Handle) else type(handle.known))
            held.append((given, handle))
            for given, handle in held if number in (2, 5) else held[-1:]:
                rows, again = shuffle.dispatch(given["x"] * 2, handle=handle)
                late = {"weights": given["weights"]}
                close(shuffle.combine(by_slot(rows, again), again, **late), 2 * summed(given))
    shuffle.check()
    return kinds


def slabs_again(group: Any, artifact: str, topology: str) -> list[tuple[type, int, bool]]:
    """Calls in slabs behind one whose rows were too many for them: small ones, and then the largest
    that slabs carry. Of each what its handle knows and its places, and whether slabs had room for
    rows of as many before it."""
    shuffle = open_shuffle(group, artifact, topology)
    rank, node, found = shuffle.rank, shuffle.engine.node, []
    most = node._sizes._sent(node._sizes.size_of(100))
    with mock.patch.object(places, "MOST_SENT", most):
        for number, tokens in enumerate([130, 1, 1, 1, 100]):
            room = node._shared.with_rows
            given = data_of(rank, tokens if rank == 0 else 1, number)
            rows, handle = shuffle.dispatch(**given)
            close(shuffle.combine(by_slot(rows, handle), handle), summed(given))
            had = handle.known.work.places
            found.append((type(handle.known), had, room >= had))
    shuffle.check()
    return found


def a_refused_combine(group: Any, artifact: str, topology: str) -> tuple[list[str], list[int]]:
    """The last rank gives rows of a wrong shape: what is said on every rank, and which of its sums
    are lost. Whole calls follow."""
    shuffle = open_shuffle(group, artifact, topology)
    num_ranks, rank = shuffle.topology.num_ranks, shuffle.rank
    given = data_of(rank, 3)
    rows, handle = shuffle.dispatch(**given)
    held, lost = by_slot(rows, handle), []
    if rank == num_ranks - 1:
        said = [said_by(lambda: shuffle.combine(torch.rand(1, 7), handle))]
    else:
        result = shuffle.combine(held, handle)
        is_lost = result.isnan().any(1)
        assert torch.equal(is_lost, result.isnan().all(1))
        close(result[~is_lost], summed(given)[~is_lost])
        lost, said = is_lost.nonzero().flatten().tolist(), []
    said.append(said_by(shuffle.check))
    close(shuffle.combine(held, handle), summed(given))
    run(shuffle, batch(shuffle.spec, [2] * num_ranks, 1), combines=1)
    said.append(said_by(shuffle.check))
    return said, lost


def changed_weights(group: Any, artifact: str, topology: str) -> list[list[str]]:
    """Weights of the last rank change behind the dispatch that has sent them: in place, or they are
    freed, and autograd keeps the routing or not. What is said of each. Combines by others, and by
    those of a dispatch along the routing, are whole, and so are gradients."""
    shuffle, found = open_shuffle(group, artifact, topology), []
    is_last = shuffle.rank == shuffle.topology.num_ranks - 1
    for number, (is_freed, wants_grad) in enumerate(product([False, True], repeat=2)):
        given = data_of(shuffle.rank, 4, number)
        x, sent = given["x"].requires_grad_(wants_grad), given["weights"].clone()
        rows, handle = shuffle.dispatch(**{**given, "weights": sent})
        held = by_slot(rows, handle)
        close(shuffle.combine(held, handle), summed(given))
        if is_last and is_freed:
            sent.untyped_storage().resize_(0)
        elif is_last:
            sent.neg_()
        if is_last:
            said = [said_by(partial(shuffle.combine, held, handle))]
        else:
            result = shuffle.combine(held, handle)
            is_lost = result.isnan().any(1)
            assert torch.equal(is_lost, result.isnan().all(1))
            close(result[~is_lost], summed(given)[~is_lost])
            said = [str(bool(is_lost.any()))]
        found.append([*said, rank_work.told(shuffle)])
        late = shuffle.combine(held, handle, weights=given["weights"])
        close(late, summed(given))
        if wants_grad:
            each = [torch.autograd.grad(y.square().sum(), x) for y in (late, summed(given))]
            close(*each[0], *each[1])
        if not is_freed:
            rows, again = shuffle.dispatch(x, handle=handle)
            now = {**given, "weights": sent}
            close(shuffle.combine(by_slot(rows, again), again), summed(now))
    shuffle.check()
    shuffle.close()
    return found


def changed_weights_compiled(group: Any, artifact: str, topology: str) -> None:
    """In a compiled function they count as they were at dispatch, in gradients, too."""
    shuffle = open_shuffle(group, artifact, topology)

    @torch.compile(fullgraph=True, backend="eager")
    def layer(x: Any, idx: Any, weights: Any) -> Any:
        held = weights * 2
        rows, handle = shuffle.dispatch(x, idx=idx, weights=held)
        held.neg_()
        return shuffle.combine(rows, handle)

    given = data_of(shuffle.rank, 4)
    weights = given["weights"].requires_grad_()
    found, wanted = layer(**given), 2 * summed(given)
    close(found, wanted)
    each = [torch.autograd.grad(y.square().sum(), weights) for y in (found, wanted)]
    close(*each[0], *each[1])
    shuffle.check()
    shuffle.close()


def other_routings(group: Any, artifact: str, topology: str) -> list[str]:
    """The last rank means another dispatch than the others, in a combine and in a dispatch; what is
    said. Nothing is moved, and whole calls follow."""
    shuffle = open_shuffle(group, artifact, topology)
    num_ranks, rank = shuffle.topology.num_ranks, shuffle.rank
    given = data_of(rank, 5)
    given["idx"] = (torch.arange(15).view(5, 3) * 5 + rank) % KEYS
    made = [shuffle.dispatch(**given)[1] for _ in range(2)]
    mine = made[rank == num_ranks - 1]
    full = torch.rand(mine.num_slots, HIDDEN)
    owners = given["idx"] // (KEYS // num_ranks)
    needs = (owners != rank if rank == num_ranks - 1 else owners == num_ranks - 1).any(1)
    lost = shuffle.combine(full, mine).isnan()
    assert torch.equal(lost.all(1), lost.any(1))
    assert bool(lost.all(1)[needs].all())
    said = [rank_work.told(shuffle)]
    _, new = shuffle.dispatch(given["x"], handle=mine)
    assert bool(shuffle.combine(full, new).isnan().all())
    said.append(rank_work.told(shuffle))
    run(shuffle, batch(shuffle.spec, [1] * num_ranks, 1), combines=1)
    said.append(rank_work.told(shuffle))
    return said


def a_refused_dispatch(group: Any, artifact: str, topology: str) -> list[str]:
    """Rank 1 has rows of a wrong type for a dispatch along a known routing; what is said on every
    rank, and of rank 1's next call."""
    shuffle = open_shuffle(group, artifact, topology)
    given = data_of(shuffle.rank, 5)
    _, handle = shuffle.dispatch(**given)
    if shuffle.rank == 1:
        wrong = given["x"].double()
        said = [said_by(lambda: shuffle.dispatch(wrong, handle=handle))]
        return [*said, said_by(lambda: shuffle.dispatch(**given))]
    shuffle.dispatch(given["x"], handle=handle)
    return [rank_work.told(shuffle)]


def no_memory(group: Any, artifact: str, topology: str) -> list[str]:
    """The last rank has no memory for larger slabs; what is said of two calls."""
    shuffle = open_shuffle(group, artifact, topology)
    none = torch.OutOfMemoryError("no memory")
    if shuffle.rank == shuffle.topology.num_ranks - 1:
        mock.patch.object(exact_rails, "new_slab_memory", side_effect=none).start()
    large = partial(shuffle.dispatch, **data_of(shuffle.rank, 45))
    try:
        return [said_by(large), said_by(large)]
    finally:
        mock.patch.stopall()


def one_dies(group: Any, artifact: str, topology: str) -> list[str]:
    """The last rank ends without a word; what the others say, and what of a further call."""
    shuffle = open_shuffle(group, artifact, topology)
    return last_ends(shuffle, data_of(shuffle.rank, 2))


def weights_on_one_rank(group: Any, artifact: str, topology: str) -> type:
    """Rank 0 alone gives weights to a dispatch, which the general engine then carries out; the kind
    of its handle."""
    shuffle = open_shuffle(group, artifact, topology)
    given = data_of(shuffle.rank, 3)
    weights = {"weights": given.pop("weights")}
    early, late = (weights, {}) if shuffle.rank == 0 else ({}, weights)
    rows, handle = shuffle.dispatch(**given, **early)
    result = shuffle.combine(by_slot(rows, handle), handle, **late)
    close(result, summed({**given, **weights}))
    shuffle.check()
    return type(handle)


def in_turns(
    group: Any,
    artifact: str,
    topology: str,
    batches: Sequence[Sequence[int]],
    num_turns: int,
    first: int = 0,
) -> int:
    """Calls whose partial rows come back in so many turns, at most; in how many those of the last
    did. As if there had been ``first`` combines before."""
    small = {"STAGING_BYTES": 0, "MOST_STAGING_BYTES": 0, "num_turns": lambda _: num_turns}
    with mock.patch.multiple(slabs, **small):
        shuffle = open_shuffle(group, artifact, topology)
        if first:
            rank_work.pretend(shuffle, first)
        for number, each in enumerate(batches):
            run(shuffle, batch(shuffle.spec, each, number), combines=2)
        shuffle.check()
        node = shuffle.engine.node
        places = node._memory._stride
        found = -(-places // node._memory.staged_places)
        shuffle.close()
    return found


def no_memory_in_one_node(group: Any, artifact: str, topology: str, tokens: int) -> list[str]:
    """The last node has no memory for more slots, which others do not need; what is said of the
    call that needs them, of the next of all ranks, and of one of another shuffle."""
    shuffle, other = (open_shuffle(group, artifact, topology, timeout=6.0) for _ in range(2))
    rank, given, small = shuffle.rank, data_of(shuffle.rank, tokens), data_of(shuffle.rank, 1)
    given["idx"] = torch.full_like(given["idx"], KEYS - 1)
    for each in (shuffle, other):
        each.dispatch(**small)
    node = shuffle.engine.node
    grow, allocate, lasting = node._grow, node._allocate, node.limits.capacity

    def scarce(nbytes: int) -> Any:
        if nbytes > node.window_bytes:
            raise PreparationError(rank, "no memory")
        return allocate(nbytes)

    def grow_alone(wanted: Limits) -> Any:
        node._allocate = scarce if wanted.capacity > lasting else allocate
        return grow(wanted)

    if shuffle.topology.node(rank) == shuffle.topology.num_nodes - 1:
        node._grow = grow_alone

    def call() -> None:
        rows, handle = shuffle.dispatch(**given)
        shuffle.combine(by_slot(rows, handle), handle)

    again = partial(shuffle.dispatch, **small)
    return [said_by(call), said_by(again), said_by(partial(other.dispatch, **small))]


def no_memory_for_ways(group: Any, artifact: str, topology: str) -> list[str]:
    """The last rank has no memory for the ways of its rows, of which no other hears otherwise; what
    is said of the call, of the next, and of one of another shuffle."""
    shuffle, other = (open_shuffle(group, artifact, topology, timeout=4.0) for _ in range(2))
    given, last = data_of(shuffle.rank, 8), shuffle.topology.num_ranks - 1
    for each in (shuffle, other):
        each.dispatch(**given)
    none = torch.OutOfMemoryError("no memory")
    lacking = mock.patch.object(flow_rails, "uploaded", side_effect=none)
    with lacking if shuffle.rank == last else nullcontext():
        try:
            said = [said_by(partial(shuffle.dispatch, **given))]
        except torch.OutOfMemoryError as error:
            said = [str(error)]
    return said + [said_by(partial(each.dispatch, **given)) for each in (shuffle, other)]
