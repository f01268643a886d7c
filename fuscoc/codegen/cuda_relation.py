"""The functor ``Relation``: the spec's key, placement and source expressions as CUDA C++."""

from __future__ import annotations

from fuscoc.codegen.cuda_types import CudaShuffle, Scalar

C_TYPES = {"i32": "int", "i64": "i64"}
FLOORING = {"/": "floor_div", "%": "floor_mod"}
BUILTIN_EXTENTS = {"rank": "i64(call.rank)", "ranks": "i64(call.num_ranks)"}


def print_relation(shuffle: CudaShuffle) -> str:
    """The functor with the spec's key, placement and source expressions."""
    per_rank = "(num_keys + call.num_ranks - 1) / call.num_ranks"
    place = {"block": f"key / ({per_rank})", "cyclic": "key % call.num_ranks"}.get(
        shuffle.placement
    ) or _load(shuffle, shuffle.placement, "key")
    source_domain = shuffle.domain[: shuffle.num_source_dims]
    return "\n".join(
        [
            "struct Relation {",
            "  const Call& call;",
            f"  static constexpr int num_keys = {shuffle.num_keys};",
            "  __device__ __forceinline__ i64 key(i64 point) const {",
            *_indices(shuffle, shuffle.domain, "point", shuffle.key),
            f"    return {_scalar(shuffle, shuffle.key)};",
            "  }",
            "  __device__ __forceinline__ int place(int key) const {",
            f"    return int({place});",
            "  }",
            "  __device__ __forceinline__ i64 source_cell(i64 source) const {",
            *_indices(shuffle, source_domain, "source", shuffle.source_cell),
            f"    return {_scalar(shuffle, shuffle.source_cell)};",
            "  }",
            "};",
        ]
    )


def _indices(
    shuffle: CudaShuffle, domain: tuple[tuple[str, Scalar], ...], linear: str, used_by: Scalar
) -> list[str]:
    """Declarations of the indices that an expression uses, from a row-major linear index."""
    used = _names(used_by)
    lines, rest = [], linear
    for position, (name, extent) in reversed(list(enumerate(domain))):
        size = _scalar(shuffle, extent)
        if name in used:
            value = f"({rest}) % ({size})" if position > 0 else rest
            lines.append(f"    const i64 index_{name} = {value};")
        rest = f"({rest}) / ({size})"
    return lines


def _names(scalar: Scalar) -> set[str]:
    if isinstance(scalar, int):
        return set()
    if "index" in scalar:
        return {str(scalar["index"])}
    children = scalar.get("at", scalar.get("args", ()))
    assert isinstance(children, (list, tuple))
    return set().union(*(_names(child) for child in children))


def _load(shuffle: CudaShuffle, name: str, offset: str) -> str:
    position, tensor = next((i, t) for i, t in enumerate(shuffle.inputs) if t.name == name)
    value = f"static_cast<const {C_TYPES[tensor.dtype]}*>(call.inputs[{position}])[{offset}]"
    return value if tensor.dtype == "i64" else f"i64({value})"


def _scalar(shuffle: CudaShuffle, scalar: Scalar) -> str:
    """A scalar expression of the manifest as a C++ expression of type i64."""
    if isinstance(scalar, int):
        return f"i64({scalar})"
    if "index" in scalar:
        return f"index_{scalar['index']}"
    if "extent" in scalar:
        name = str(scalar["extent"])
        if name not in shuffle.extents:
            return BUILTIN_EXTENTS[name]
        return f"call.extents[{shuffle.extents.index(name)}]"
    if "load" in scalar:
        at = scalar["at"]
        assert isinstance(at, (list, tuple))
        name = str(scalar["load"])
        shape = next(t.shape for t in shuffle.inputs if t.name == name)
        offset = "i64(0)"
        for subscript, size in zip(at, shape, strict=True):
            step = _scalar(shuffle, subscript)
            offset = (
                step if offset == "i64(0)" else f"({offset}) * {_scalar(shuffle, size)} + {step}"
            )
        return _load(shuffle, name, offset)
    args = scalar["args"]
    assert isinstance(args, (list, tuple))
    lhs, rhs = (_scalar(shuffle, arg) for arg in args)
    if scalar["op"] in FLOORING:
        return f"{FLOORING[str(scalar['op'])]}({lhs}, {rhs})"
    return f"({lhs} {scalar['op']} {rhs})"
