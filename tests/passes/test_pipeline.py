"""The pipeline as a whole: levels, stops, determinism, and errors that point into the spec."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fuscoc import pipeline
from fuscoc.diagnostics import InternalError
from fuscoc.dialect.base import PassError
from fuscoc.dialect.l0 import Dispatch
from fuscoc.dialect.mlir import ir
from fuscoc.pipeline import PASS_NAMES, PASSES, Pass, compile_to_ir
from tests import specs
from tests.dialect.support import round_trips

SPECS = {
    "moe": specs.moe(),
    "moe_unweighted": specs.moe(weighted=False),
    "moe_dispatch_only": replace(specs.moe(), combine=None),
    "moe_fp8": specs.moe_fp8(),
    "moe_cyclic": specs.moe(placement="cyclic", capacity=512),
    "vit_patches": specs.vit_patches(),
    "vit_patches_nchw": specs.vit_patches(channels_first=True),
}


def test_the_order_of_passes() -> None:
    assert PASS_NAMES == (
        "build",
        "check-relations",
        "coalesce-segments",
        "simplify-scalars",
        "build-hierarchy",
        "derive-transpose",
        "choose-forwarders",
        "form-slices",
        "fuse-transforms",
        "fuse-node",
        "split-affine",
        "choose-tiles",
        "specialise-kernels",
    )
    assert sorted(step.level for step in PASSES) == [step.level for step in PASSES]


@pytest.mark.parametrize("name", SPECS)
def test_every_level_round_trips(name: str) -> None:
    dumps = compile_to_ir(SPECS[name]).dumps
    assert list(dumps) == ["L0", "L1", "L2", "L3"]
    assert len(set(dumps.values())) == 4
    for text in dumps.values():
        assert round_trips(text)


def test_output_is_deterministic() -> None:
    assert compile_to_ir(specs.moe()).dumps == compile_to_ir(specs.moe()).dumps


@pytest.mark.parametrize("after", PASS_NAMES)
def test_stops_after_a_pass(after: str) -> None:
    seen: list[str] = []
    lowered = compile_to_ir(
        specs.moe(), after=after, print_between=lambda name, _: seen.append(name)
    )
    assert seen == list(PASS_NAMES[: PASS_NAMES.index(after) + 1])
    assert str(lowered.module) == lowered.text


def test_prints_the_module_between_passes() -> None:
    texts: dict[str, str] = {}
    lowered = compile_to_ir(specs.moe(), print_between=texts.__setitem__)
    assert tuple(texts) == PASS_NAMES
    assert texts["check-relations"] == texts["build"]
    assert texts["specialise-kernels"] == lowered.dumps["L3"]


def test_unknown_pass() -> None:
    with pytest.raises(ValueError, match="no pass 'fuse'; there are build, check-relations, "):
        compile_to_ir(specs.moe(), after="fuse")


def test_the_module_outlives_the_pipeline() -> None:
    module = compile_to_ir(specs.moe(), after="form-slices").module
    assert module.operation.verify()


def break_dispatch(module: Any) -> None:
    """What a faulty pass would do: leave an operation that does not verify."""
    dispatch = next(op for op in module.body if isinstance(op, Dispatch))
    dispatch.attributes["speed"] = ir.UnitAttr.get(module.context)


def give_up(module: Any) -> None:
    dispatch = next(op for op in module.body if isinstance(op, Dispatch))
    raise PassError(dispatch, "is beyond me")


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (break_dispatch, "faulty: 'fsc.dispatch' op has an unknown attribute 'speed'"),
        (give_up, "faulty: 'fsc.dispatch' op is beyond me"),
    ],
)
def test_faulty_passes_are_internal_errors_in_the_spec(
    run: Callable[[Any], None], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "PASSES", (Pass("faulty", "L0", run),))
    monkeypatch.setattr(pipeline, "PASS_NAMES", ("build", "faulty"))
    with pytest.raises(InternalError) as caught:
        compile_to_ir(specs.vit_patches())
    error = caught.value
    assert error.message == message
    assert error.source is not None
    assert error.span is not None
    text = error.source.text[error.span.start : error.span.end]
    assert text == "dispatch patches[n, i, j] -> sequence"
    assert str(error).startswith("vit_patches.fsc:18:3: internal error: faulty: ")


def test_what_the_builder_cannot_say_is_an_internal_error_too() -> None:
    checked = specs.moe()
    wrong = replace(checked, source=replace(checked.source, dims=checked.source.dims * 2))
    with pytest.raises(InternalError, match=r"^moe.fsc:18:3: internal error: build: 'fsc.relate'"):
        compile_to_ir(wrong)
