"""The manifest: the runtime reads it, and it says what the spec and the module say."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fuscoc
from fuscoc.artifact import MANIFEST, SUMS, artifact_files
from fuscoc.declared import scalar_json
from fuscoc.lang.checked import BinaryOp, CheckedShuffle, Const, ExtentRef, IndexRef, Inside, Load
from fuscoc.manifest import CompiledShuffle
from fuscoc.pipeline import compile_to_ir
from fuscoc_runtime import scalar
from fuscoc_runtime.manifest.artifact import SCHEMA
from fuscoc_runtime.manifest.decode import decode
from fuscoc_runtime.manifest.program import ExchangeStep, LaunchStep
from fuscoc_runtime.manifest.schema import Manifest
from tests.codegen.specs import SPECS
from tests.specs import moe, vit_patches


def compiled(*shuffles: CheckedShuffle) -> dict[str, bytes]:
    """The files of an artifact of these shuffles."""
    lowered = [compile_to_ir(checked) for checked in shuffles]
    pairs = zip(shuffles, lowered, strict=True)
    items = [CompiledShuffle(checked, low.module, low.dumps) for checked, low in pairs]
    return artifact_files(shuffles[0].source_file, items)


def manifest_of(files: dict[str, bytes]) -> Manifest:
    return decode(Manifest, json.loads(files[MANIFEST]))


@pytest.mark.parametrize("name", SPECS)
def test_follows_the_runtimes_schema(name: str) -> None:
    checked = SPECS[name]()
    files = compiled(checked)
    manifest = manifest_of(files)
    (shuffle,) = manifest.shuffles
    assert manifest.schema == SCHEMA
    assert manifest.compiler == fuscoc.__version__
    listed = [line.split("  ") for line in files[SUMS].decode().splitlines()]
    assert {path: digest for digest, path in listed} == {
        path: hashlib.sha256(content).hexdigest() for path, content in files.items() if path != SUMS
    }
    assert shuffle.name == checked.name
    assert [field.name for field in shuffle.declared.fields] == [
        field.name for field in checked.fields
    ]
    relation = shuffle.program.relation
    assert (relation.extents_kernel is not None) == name.startswith("vit")
    assert set(relation.outputs) > {"source", "rank", *relation.addresses}
    assert shuffle.program.inputs == tuple(
        given.name for given in shuffle.declared.inputs if given.role != "weight"
    )
    assert shuffle.program.extents == shuffle.declared.extents


@pytest.mark.parametrize("name", SPECS)
def test_steps_fit_their_kernels(name: str) -> None:
    """A step binds the rows of every field, and says it signals or waits if its kernel does."""
    manifest = manifest_of(compiled(SPECS[name]()))
    (shuffle,) = manifest.shuffles
    kernels = {kernel.name: kernel for kernel in manifest.kernels}
    assert shuffle.program.combine is not None
    for path in (shuffle.program.dispatch, shuffle.program.combine):
        (exchange,) = [step for step in path.steps if isinstance(step, ExchangeStep)]
        assert (exchange.forwarder is None) == (path is shuffle.program.combine)
        assert len(path.launches) + 1 == len(path.steps)
        for step in path.launches:
            kernel = kernels[step.kernel]
            assert step.list in [each.name for each in path.lists]
            values = {arg.value for arg in kernel.args}
            assert (
                {f"{field.name}_src" for field in shuffle.declared.fields}
                <= step.bind.keys()
                <= values
            )
            assert ("signal" in kernel.emits) == (step.signal is not None)
            assert {f"expected_{slot}" for slot in step.wait} == {
                value for value in values if value.startswith("expected_")
            }
            assert ("wait" in kernel.emits) == bool(step.wait)


def test_moe() -> None:
    (shuffle,) = manifest_of(compiled(moe())).shuffles
    topk_idx = Load("topk_idx", (IndexRef("t"), IndexRef("k")))
    assert shuffle.declared.target.kind == "packed"
    assert shuffle.declared.target.key == scalar.parse(scalar_json(topk_idx))
    assert (shuffle.declared.target.num_keys, shuffle.declared.target.align) == (256, 128)
    assert shuffle.declared.target.capacity is None
    assert shuffle.declared.constants == {"experts": 256, "hidden": 7168, "topk": 8}
    assert shuffle.program.fanout == 8
    assert shuffle.declared.combine is not None
    assert shuffle.declared.combine.weight is not None
    assert shuffle.declared.combine.weight.input == "topk_weights"
    assert shuffle.program.relation.outputs == ("source", "src_offset", "rank", "key")
    launches = [step for step in shuffle.program.dispatch.steps if isinstance(step, LaunchStep)]
    assert [(step.kernel, step.list, step.signal, step.wait) for step in launches] == [
        ("moe_pack", "net_send", None, ()),
        ("moe_send", "direct", 0, ()),
        ("moe_forward", "forward", 1, ()),
        ("moe_duplicate", "local", None, (0, 1)),
    ]
    assert launches[1].bind == {"x_src": "source.x", "x_dst": "peers.target.x"}


def test_vit_patches() -> None:
    (shuffle,) = manifest_of(compiled(vit_patches())).shuffles
    assert shuffle.declared.target.kind == "dense"
    assert shuffle.program.relation.outputs == (
        "source",
        "src_offset",
        "src_stride0",
        "rank",
        "slot",
    )
    assert shuffle.program.relation.extents_kernel == "vit_patches_extents"
    (runs,) = shuffle.program.runs
    assert (runs.run_elems, runs.seg_elems) == (42, 588)
    assert [(dim.count, dim.src_stride, dim.dst_stride) for dim in runs.run_dims] == [
        (14, "src_stride0", 42)
    ]


def test_without_a_combine() -> None:
    (shuffle,) = manifest_of(compiled(replace(moe(), combine=None))).shuffles
    assert shuffle.declared.combine is None
    assert shuffle.program.combine is None


def test_several_shuffles_keep_their_kernels_apart() -> None:
    """``moe_reduce`` + ``_forward`` and ``moe`` + ``_reduce_forward`` are different kernels."""
    files = compiled(moe(hidden=8), replace(moe(hidden=16), name="moe_reduce"))
    manifest = manifest_of(files)
    names = [kernel.name for kernel in manifest.kernels]
    assert len(set(names)) == len(names)
    twins = [kernel for kernel in manifest.kernels if kernel.function == "moe_reduce_forward"]
    assert [(twin.name, twin.file) for twin in twins] == [
        ("moe.moe_reduce_forward", "kernels/moe.py"),
        ("moe_reduce.moe_reduce_forward", "kernels/moe_reduce.py"),
    ]
    kernels = {kernel.name: kernel for kernel in manifest.kernels}
    for shuffle in manifest.shuffles:
        for step in shuffle.program.dispatch.steps:
            if step.op == "launch":
                assert kernels[step.kernel].file == f"kernels/{shuffle.name}.py"


def test_same_input_same_bytes() -> None:
    assert compiled(moe(), vit_patches()) == compiled(moe(), vit_patches())


def test_does_not_depend_on_where_the_spec_lies() -> None:
    checked = moe()
    elsewhere = replace(checked.source_file, path="/some/where/moe.fsc")
    assert compiled(replace(checked, source_file=elsewhere)) == compiled(checked)


def test_json_is_sorted_and_ends() -> None:
    text = compiled(moe())[MANIFEST].decode()
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"


SCALARS = st.recursive(
    st.integers(0, 99).map(Const) | st.just(IndexRef("i")) | st.just(ExtentRef("n")),
    lambda inner: st.one_of(
        st.builds(Load, st.just("table"), st.lists(inner, min_size=1, max_size=2).map(tuple)),
        st.builds(BinaryOp, st.sampled_from(["+", "-", "*", "/", "%"]), inner, inner),
        st.builds(Inside, inner, inner),
    ),
    max_leaves=8,
)


@given(tree=SCALARS)
def test_scalars(tree: Any) -> None:
    """The runtime parses what is written to a tree of the same form."""

    def form(tree: Any) -> Any:
        match type(tree).__name__:
            case "int":
                return tree
            case "Const":
                return tree.value
            case "IndexRef" | "Index" | "ExtentRef" | "Extent":
                return type(tree).__name__.removesuffix("Ref"), tree.name
            case "Load":
                return getattr(tree, "input", None) or tree.name, *map(form, tree.at)
            case "BinaryOp":
                return tree.op, form(tree.lhs), form(tree.rhs)
            case "Inside":
                return form(tree.value), form(tree.limit)
        raise AssertionError(tree)

    assert form(scalar.parse(scalar_json(tree))) == form(tree)


def test_files_are_where_the_manifest_says() -> None:
    files = compiled(moe())
    assert sorted(files) == [
        SUMS,
        *(f"ir/moe.L{level}.mlir" for level in range(4)),
        "kernels/moe.cu",
        "kernels/moe.node.py",
        "kernels/moe.py",
        "kernels/moe.sm_80.cu",
        MANIFEST,
    ]
    assert all(not Path(path).is_absolute() for path in files)
