"""What the tests of exact sizes let ranks of several nodes do with segments that pieces have, those
of a static shuffle, and ragged ones; every function runs on one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from fuscoc_runtime.demo.generate import source_shape
from fuscoc_runtime.demo.verify import check_result, check_rows, expect, slot_keys, work_on
from fuscoc_runtime.engine.node.exact_rails import ExactRails
from fuscoc_runtime.engine.node.rail_calls import RailCalls
from fuscoc_runtime.face.shuffle import Shuffle
from fuscoc_runtime.reference import RankData
from fuscoc_runtime.scalar import Scope, builtin_extents
from tests.node_exact.rank_work import told
from tests.node_triton.rank_work import batch, by_field, filled_up, run, said_by, source_of
from tests.rails.exact_work import counts, open_shuffle
from tests.rails.rail_work import last_ends
from tests.waits import host_waits

Given = dict[str, Any]


def given_of(shuffle: Shuffle, data: RankData) -> Given:
    """The arguments of a dispatch."""
    tensors = {**data.source, **data.inputs}
    return {name: each.to(shuffle.device) for name, each in tensors.items()} | {**data.extents}


def launched(group: Any, artifact: str, topology: str, num_calls: int) -> list[tuple[int, int]]:
    """How often dispatches of the same sizes were launched, and windows grew for each."""
    shuffle, found = open_shuffle(group, artifact, topology), []
    for number in range(num_calls):
        with counts(RailCalls, "dispatch") as launches, counts(ExactRails, "_grow") as grown:
            run(shuffle, batch(shuffle.spec, [1] * shuffle.topology.num_ranks, number), combines=1)
        found.append((len(launches), len(grown)))
    shuffle.check()
    return found


def waits(group: Any, artifact: str, topology: str, sizes: Sequence[int]) -> list[list[str]]:
    """Where the host waits in a dispatch of known size, its combine, a dispatch along its routing
    and the combine of that."""
    shuffle = open_shuffle(group, artifact, topology)
    data = batch(shuffle.spec, sizes, 1)[shuffle.rank]
    given, found = given_of(shuffle, data), []

    def call(make: Callable[[], Any]) -> Any:
        with host_waits() as waited:
            made = make()
        found.append(list(waited))
        return made

    shuffle.dispatch(**given)
    rows, handle = call(lambda: shuffle.dispatch(**given))
    held = rows.clone()
    call(lambda: shuffle.combine(held, handle))
    _, again = call(lambda: shuffle.dispatch(**data.source, handle=handle))
    call(lambda: shuffle.combine(held, again))
    shuffle.check()
    return found


def handles_last(
    group: Any, artifact: str, topology: str, batches: Sequence[Sequence[int]], **options: Any
) -> None:
    """Other rows along routings of calls of these sizes, the latest first, each there and back, and
    then the older handle once more; what calls were given is changed behind them."""
    shuffle = open_shuffle(group, artifact, topology, **options)
    held = []
    for number, sizes in enumerate(batches):
        ranks = batch(shuffle.spec, sizes, number)
        mine = ranks[shuffle.rank]
        given = given_of(shuffle, mine)
        inputs = {name: given[name].clone() for name in mine.inputs}
        _, handle = shuffle.dispatch(**given | inputs)
        for each in inputs.values():
            each.fill_(-1)
        held.append((ranks, handle))
    for number, (ranks, handle) in [*enumerate(held)][::-1]:
        others = _with_other_rows(shuffle, ranks, 100 + number)
        mine = others[shuffle.rank]
        given, names = given_of(shuffle, mine), [*mine.source, *shuffle.spec.program.numbers]
        rows, again = shuffle.dispatch(**{name: given[name] for name in names}, handle=handle)
        _check(shuffle, others, rows, again)
        _check(shuffle, others, rows, handle)
    shuffle.check()
    shuffle.close()


def _with_other_rows(shuffle: Shuffle, ranks: Sequence[RankData], seed: int) -> list[RankData]:
    made = []
    for rank, data in enumerate(ranks):
        here = {**data.extents, **builtin_extents(rank, len(ranks))}
        source = source_of(shuffle.spec, replace(data, extents=here), seed + rank)
        made.append(replace(data, source=source))
    return made


def _check(shuffle: Shuffle, ranks: Sequence[RankData], given: Any, handle: Any) -> None:
    """Rows of a dispatch, and results of a combine by a handle, if any come back, are the
    reference's."""
    expected, spec = expect(shuffle.spec, list(ranks), shuffle.rank), shuffle.spec
    own = expected.rows[shuffle.rank]
    rows = by_field(given, spec.declared.fields[0].name)
    check_rows(own, rows, handle)
    if expected.results is None:
        return
    fields = {name: each.to(shuffle.device) for name, each in own.fields.items()}
    worked = work_on(spec, fields, own.written, slot_keys(own))
    outputs = filled_up(worked, handle.num_slots)
    result = by_field(shuffle.combine(outputs, handle), next(iter(outputs)))
    check_result(expected.results[shuffle.rank], result)


def gradients(
    group: Any, artifact: str, topology: str, sizes: Sequence[int], **options: Any
) -> None:
    """Through two layers, each of which copies what it sends back; segments that went nowhere come
    back as 0."""
    shuffle = open_shuffle(group, artifact, topology, **options)
    data = batch(shuffle.spec, sizes, 1)[shuffle.rank]
    others, [name] = given_of(shuffle, data), data.source
    values = others.pop(name)
    rows, handle = shuffle.dispatch(values, **others)
    goes = shuffle.combine(torch.ones_like(rows), handle)
    x = values.clone().requires_grad_()

    def layer(x: Tensor) -> Tensor:
        rows, handle = shuffle.dispatch(x, **others)
        return shuffle.combine(rows.sin(), handle)

    [found] = torch.autograd.grad(layer(layer(x)).square().sum(), x)
    plain = (x.sin() * goes).sin() * goes
    [wanted] = torch.autograd.grad(plain.square().sum(), x)
    close = 1e-5 if x.dtype == torch.float32 else 5e-2
    torch.testing.assert_close(found, wanted, rtol=close, atol=close)
    shuffle.check()


def weighed(
    group: Any, artifact: str, topology: str, opens: Callable[..., Shuffle], **options: Any
) -> None:
    """Sums of rows that go to several slots each, by weights of a dispatch and of a combine, along
    a known routing, too; gradients of rows and weights. A rank refuses a combine in between."""
    shuffle = opens(group, artifact, topology, **options)
    rank, num_ranks = shuffle.rank, shuffle.topology.num_ranks
    here = Scope(builtin_extents(rank, num_ranks))
    shape, random = source_shape(shuffle.spec, here), torch.Generator().manual_seed(rank)
    [field], fanout = shuffle.spec.declared.source.fields, shuffle.spec.program.fanout
    x, w = (
        torch.rand((*shape, *last), generator=random).to(shuffle.device).requires_grad_()
        for last in (field.shape, (fanout,))
    )
    handle = None
    for is_late in (False, True, False):
        early, late = ({}, {"w": w}) if is_late else ({"w": w}, {})
        routing = {} if handle is None else {"handle": handle}
        rows, handle = shuffle.dispatch(x, **early, **routing)
        result = shuffle.combine(rows, handle, **late)
        wanted = x * w.sum(-1, keepdim=True)
        torch.testing.assert_close(result, wanted)
        back = torch.rand(result.shape, generator=random).to(shuffle.device)
        for found, right in zip(
            torch.autograd.grad(result, [x, w], back),
            torch.autograd.grad(wanted, [x, w], back),
            strict=True,
        ):
            torch.testing.assert_close(found, right)
        with torch.no_grad():
            if rank == num_ranks - 1:
                said = said_by(partial(shuffle.combine, x[:, :1, :1], handle, w=w.detach()))
                assert "has the shape" in said
            else:
                lost = shuffle.combine(rows.detach(), handle, w=w.detach())
                kept = ~lost.isnan().any(-1)
                torch.testing.assert_close(lost[kept], wanted[kept])
    while said_by(shuffle.check) != "no error":
        pass
    shuffle.close()


def kept_by_one(group: Any, artifact: str, topology: str) -> None:
    """Autograd keeps a combine on one rank alone, whose weights dispatch was given: what travels is
    the same on all. With other weights than those, rows and gradients are weighed by them."""
    shuffle = open_shuffle(group, artifact, topology)
    rank, num_ranks = shuffle.rank, shuffle.topology.num_ranks
    shape = source_shape(shuffle.spec, Scope(builtin_extents(rank, num_ranks)))
    [field], fanout = shuffle.spec.declared.source.fields, shuffle.spec.program.fanout
    x, w, others = (torch.rand(*shape, *each) for each in (field.shape, (fanout,), (fanout,)))
    for keeps in (0, num_ranks - 1):
        rows, handle = shuffle.dispatch(x, w=w)
        rows = rows.clone().requires_grad_(rank == keeps)
        result = shuffle.combine(rows, handle)
        assert result.requires_grad == (rank == keeps)
        torch.testing.assert_close(result.detach(), x * w.sum(-1, keepdim=True))
    x.requires_grad_(), others.requires_grad_()
    for is_traced in (False, True):
        with torch.set_grad_enabled(is_traced):
            rows, handle = shuffle.dispatch(x, w=w)
        result = shuffle.combine(rows if is_traced else rows.clone(), handle, w=others)
        wanted = x * others.sum(-1, keepdim=True)
        torch.testing.assert_close(result, wanted)
        found = torch.autograd.grad(result.sum(), others)
        torch.testing.assert_close(found, torch.autograd.grad(wanted.sum(), others))
    shuffle.check()
    shuffle.close()


ROWS = "rows"
"""A name for the field of the source, whatever its own is."""


def _put(name: str, change: Callable[[Any], Any]) -> Callable[[Given], None]:
    return lambda given: given.update({name: change(given.get(name))})


def _first(name: str, value: Any) -> Callable[[Given], None]:
    """The first entry of an input is this."""

    def change(before: Tensor) -> Tensor:
        changed = before.clone()
        changed[0] = torch.as_tensor(value)
        return changed

    return _put(name, change)


MISTAKES: Mapping[str, Callable[[Given], None]] = {
    "no type": _put(ROWS, lambda rows: rows.double()),
    "a row less": _put(ROWS, lambda rows: rows[:-1]),
    "no argument": _put("planes", lambda _: 3),
    "missing": lambda given: given.pop(ROWS),
    "no list": _put(ROWS, lambda rows: rows.tolist()),
    "negative": _first("length", -1),
    "longer": _put("length", lambda length: length + 1),
    "uncountable": _first("length", 2**62),
    "no bucket": _first("bucket", 8),
    "no lengths": _put("length", lambda length: length[:-1]),
    "uneven": _first("height", 3),
    "no slot": _first("packing", [0, 400]),
    "the same slots": _put("packing", torch.zeros_like),
    "no rank": _first("packing", [7, 0]),
}
"""By name, what the last rank does to its arguments."""


def mistaken(
    group: Any,
    artifact: str,
    topology: str,
    sizes: Sequence[int],
    names: Sequence[str],
    ours: bool,
    **options: Any,
) -> list[str]:
    """The last rank makes mistakes of these ``names``, one after the other, each between calls that
    are whole; what is said, by these kernels if they are ``ours``, or the general engine."""
    opened = open_shuffle if ours else _general
    shuffle, said = opened(group, artifact, topology, **options), []
    for number, name in enumerate(names):
        ranks = batch(shuffle.spec, sizes, number)
        mine = ranks[shuffle.rank]
        rows, handle = shuffle.dispatch(**given_of(shuffle, mine))
        held = {each: rows_of.clone() for each, rows_of in _named(shuffle, rows).items()}
        bad, [field] = given_of(shuffle, mine), mine.source
        bad[ROWS] = bad.pop(field)
        if shuffle.rank == shuffle.topology.num_ranks - 1:
            MISTAKES[name](bad)
        bad = {field if name == ROWS else name: value for name, value in bad.items()}
        said.append(said_by(lambda bad=bad: shuffle.dispatch(**bad)))
        _check(shuffle, ranks, held, handle)
    said.append(told(shuffle))
    shuffle.close()
    return said


def _named(shuffle: Shuffle, rows: Any) -> dict[str, Tensor]:
    return by_field(rows, shuffle.spec.declared.fields[0].name)


def _general(group: Any, artifact: str, topology: str) -> Shuffle:
    return Shuffle(artifact, group=group, topology=topology, timeout=60.0)


def one_dies(group: Any, artifact: str, topology: str, sizes: Sequence[int]) -> list[str]:
    """The last rank ends without a word; what the others say, and what of a further call."""
    shuffle = open_shuffle(group, artifact, topology)
    data = batch(shuffle.spec, sizes, 1)[shuffle.rank]
    return last_ends(shuffle, given_of(shuffle, data))
