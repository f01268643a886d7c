"""Compare one rank's rows and results with the reference's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fuscoc_runtime import reference
from fuscoc_runtime.dtypes import TORCH_DTYPES
from fuscoc_runtime.face.calls import AnyHandle
from fuscoc_runtime.manifest.declared import Declared
from fuscoc_runtime.manifest.schema import ShuffleSpec
from fuscoc_runtime.reference import RankData, RankResult, RankRows, cast_fields

# Allowed error of a sum, in units of the sum of its absolute terms or, for the short dtypes, in
# units in the last place of that sum.
RELATIVE = {torch.float64: 1e-14, torch.float32: 1e-6}
ULPS = 2.0


class MismatchError(AssertionError):
    """A rank does not hold what the reference says."""


@dataclass(frozen=True, eq=False)
class Expected:
    """What every rank must hold: rows after dispatch, results of combine if there is one, and by
    field memory that rows go into, if they do."""

    rows: list[RankRows]
    results: list[RankResult] | None
    memory: list[dict[str, Tensor]] | None = None


def expect(shuffle: ShuffleSpec, ranks: Sequence[RankData], only: int | None = None) -> Expected:
    """Run the reference, with ``work_on`` between dispatch and combine.

    ``only``: just for this rank, which takes a fraction of the time; what the others hold is then
    incomplete.
    """
    rows, memory = reference.dispatch(shuffle, ranks, only), None
    if shuffle.into is not None:
        memory = [reference.put(shuffle, ranks, rows, rank) for rank in range(len(ranks))]
    if shuffle.back.declared.combine is None:
        return Expected(rows, None, memory)
    worked = [work_on(shuffle, each.fields, each.written, slot_keys(each)) for each in rows]
    return Expected(rows, reference.combine(shuffle, ranks, worked, only), memory)


def slot_keys(rows: RankRows) -> Tensor:
    """The key of every slot, padding included: int64 [num_slots]; 0 for a dense target."""
    if not rows.keys:
        return torch.zeros(len(rows.written), dtype=torch.int64)
    sizes = torch.tensor(rows.key_offsets).diff()
    return torch.repeat_interleave(torch.tensor(rows.keys), sizes)


def work_on(
    shuffle: ShuffleSpec, rows: Mapping[str, Tensor], written: Tensor, keys: Tensor
) -> dict[str, Tensor]:
    """Stands in for an expert: rows of key k times 1 + (k mod 8) / 8, in the source's dtype.

    Rows that a ``copy`` brings back stay as they are. Rows that nobody wrote become all ones in
    their bits (NaN in floats), which must not reach any result. With a reply, rows are `_answered`.
    """
    rows = _reals(rows)
    if shuffle.reply is not None:
        rows = _answered(shuffle.reply, rows, keys)
    combine = shuffle.declared.combine
    scales = shuffle.reply is None and combine is not None and combine.kind != "copy"
    if shuffle.reply is None and shuffle.declared.casts:
        rows = _as_they_left(shuffle.declared, rows, len(written))
    worked = {}
    for name, tensor in rows.items():
        slots = torch.nonzero(written).flatten().to(tensor.device)
        result = torch.empty_like(tensor)
        _bytes(result).fill_(0xFF)
        chosen = tensor[slots]
        if scales and tensor.is_floating_point():
            factor = 1 + (keys.to(tensor.device)[slots] % 8) / 8
            factor = factor.view(-1, *[1] * (tensor.dim() - 1))
            chosen = (chosen.double() * factor).to(tensor.dtype)
        _bytes(result)[slots] = _bytes(chosen)
        worked[name] = result
    return worked


def _as_they_left(
    declared: Declared, rows: Mapping[str, Tensor], num_slots: int
) -> dict[str, Tensor]:
    """Rows of the source's segment. What was normalised stays, but in the range of any type."""
    changed, casts = dict(rows), []
    for cast in declared.casts:
        if cast.normalise is not None:
            changed[cast.field] = rows[cast.field].float().nan_to_num().clamp(0, 100)
        casts.append(replace(cast, normalise=None))
    fields = declared.source_fields
    made = cast_fields(casts, changed, fields)
    return {each.name: made[each.name].view(num_slots, *each.shape) for each in fields}


def _answered(reply: ShuffleSpec, rows: Mapping[str, Tensor], keys: Tensor) -> dict[str, Tensor]:
    """A row of a reply for every slot: small numbers that its key and all of its bytes decide."""
    held = [_bytes(each).sum(1, dtype=torch.int64) for each in rows.values()]
    seed = sum(held[1:], held[0]) * 31 + keys.to(held[0].device)
    answers = {}
    for field in reply.declared.source_fields:
        element = torch.arange(field.num_elems, device=seed.device)
        values = (seed.unsqueeze(1) + 7 * element) % 17
        dtype = TORCH_DTYPES[field.dtype]
        values = (values - 8) / 4 if dtype.is_floating_point else values
        answers[field.name] = values.to(dtype).view(len(seed), *field.shape)
    return answers


def check_rows(expected: RankRows, rows: Mapping[str, Tensor], handle: AnyHandle) -> None:
    """The row of every slot bit by bit, and the slots of every key.

    A handle of fixed capacity has further slots, all padding.
    """
    layout = (
        ("keys", tuple(handle.keys.tolist()), expected.keys),
        ("key_counts", tuple(handle.key_counts.tolist()), expected.key_counts),
        ("key_offsets", tuple(handle.key_offsets.tolist()), expected.key_offsets),
    )
    for name, found, wanted in layout:
        if found != wanted:
            raise MismatchError(f"{name} are {found}; the reference has {wanted}")
    written = expected.written
    if expected.row_index is not None:
        index = handle.row_index
        if index is None or not _starts_with(index.cpu(), expected.row_index):
            raise MismatchError(f"row_index is {index}; the reference has {expected.row_index}")
        lengths = {name: len(each) for name, each in rows.items()}
        if set(lengths.values()) != {expected.num_rows}:
            raise MismatchError(f"rows are {lengths}; the reference has {expected.num_rows}")
    for name, wanted_rows in expected.fields.items():
        held = by_slot(_reals(rows), handle)[name][: len(written)]
        _check_bits(f"rows of `{name}`", held.cpu()[written], wanted_rows[written])


def check_memory(expected: Mapping[str, Tensor], memory: Mapping[str, Tensor]) -> None:
    """All of the caller's memory bit by bit, that which no row goes into as well."""
    for name, wanted in expected.items():
        _check_bits(f"memory of `{name}`", memory[name].cpu(), wanted)


def _starts_with(index: Tensor, wanted: Tensor) -> bool:
    """Whether ``index`` is ``wanted``, with nothing but padding behind it."""
    begin, rest = index[: len(wanted)], index[len(wanted) :]
    return torch.equal(begin, wanted) and bool((rest == -1).all())


def by_slot(rows: Mapping[str, Tensor], handle: AnyHandle) -> Mapping[str, Tensor]:
    """The row of every slot, [num_slots, *field shape]; of padding, any."""
    if handle.row_index is None:
        return rows
    at = handle.row_index.clamp(min=0)
    return {
        name: each[at] if len(each) else each.new_empty(len(at), *each.shape[1:])
        for name, each in rows.items()
    }


def check_result(expected: RankResult, result: Mapping[str, Tensor]) -> None:
    """Copies bit by bit; sums within rounding of the magnitude of what was added."""
    for name, wanted in expected.fields.items():
        found = _reals(result)[name].cpu()
        if name not in expected.magnitude:
            _check_bits(f"result `{name}`", found, wanted)
            continue
        error = (found.double() - wanted).abs()
        allowed = tolerance(found.dtype, expected.magnitude[name])
        # A NaN is never within the tolerance.
        bad = torch.nonzero(~(error <= allowed)).tolist()
        if bad:
            at = tuple(bad[0])
            raise MismatchError(
                f"result `{name}` is {float(found[at])} at {list(at)}; the reference has "
                f"{float(wanted[at])} and allows an error of {float(allowed[at]):.3g}"
            )


def tolerance(dtype: torch.dtype, magnitude: Tensor) -> Tensor:
    """The error that a sum of ``dtype`` may have, given the f64 sum of its absolute terms."""
    if dtype in RELATIVE:
        return RELATIVE[dtype] * magnitude
    info = torch.finfo(dtype)
    exponent = torch.frexp(magnitude).exponent - 1
    ulp = torch.ldexp(torch.full_like(magnitude, info.eps), exponent)
    return ULPS * torch.where(magnitude > 0, ulp.clamp(min=info.eps * info.tiny), 0)


def _reals(fields: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Complex numbers as the reference has them: pairs of reals."""
    return {
        name: torch.view_as_real(each) if each.is_complex() else each
        for name, each in fields.items()
    }


def _check_bits(what: str, found: Tensor, wanted: Tensor) -> None:
    if found.dtype != wanted.dtype or found.shape != wanted.shape:
        raise MismatchError(
            f"{what}: {found.dtype} {list(found.shape)}; the reference has {wanted.dtype} "
            f"{list(wanted.shape)}"
        )
    differs = _bytes(found) != _bytes(wanted)
    if differs.any():
        first = int(torch.nonzero(differs.any(1))[0])
        raise MismatchError(f"{what} differ from the reference's, first at {first}")


def _bytes(tensor: Tensor) -> Tensor:
    """The bytes of every entry along the first dimension: uint8 [entries, bytes], a view."""
    row_bytes = tensor.shape[1:].numel() * tensor.dtype.itemsize
    return tensor.contiguous().view(-1).view(torch.uint8).view(len(tensor), row_bytes)
