"""The vLLM and SGLang adapters against interfaces recorded from released versions."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import fuscoc
from fuscoc_runtime.adapters import sglang, vllm
from fuscoc_runtime.adapters.interface import Interface
from fuscoc_runtime.errors import AdapterError
from tests.adapters import layers, modular_kernel, stubs
from tests.adapters.modular_kernel import Case
from tests.engine import specs
from tests.engine.fixtures import pool_of
from tests.engine.pool import Pool

INTERFACES = [vllm.KERNEL, vllm.UTILS, vllm.CONTEXT, sglang.BASE, sglang.STANDARD]
INTERFACES += [sglang.TOPK, sglang.TOKENS]
NAMES = [(interface, name) for interface in INTERFACES for name in interface.signatures]


pool = pool_of(2)


@pytest.fixture(scope="module")
def in_8_bits(tmp_path_factory: pytest.TempPathFactory) -> str:
    """``examples/moe_fp8.fsc`` for few elements and experts."""
    spec, out = Path("examples/moe_fp8.fsc"), tmp_path_factory.mktemp("moe_fp8")
    return str(fuscoc.compile(spec, out / "artifact", hidden=256, experts=8, topk=2))


def described(recorded: Any, interface: Interface, name: str) -> tuple[Any, str]:
    """Where the recording says what ``name`` is, and under which key."""
    owner, _, member = name.partition(".")
    module = recorded["modules"][interface.module]
    return (module[owner]["methods"], member) if member else (module, owner)


@pytest.mark.parametrize("interface", INTERFACES, ids=lambda each: each.module)
def test_recorded_interface_is_the_expected_one(interface: Interface) -> None:
    recorded = stubs.recording(interface.package)
    assert interface.version == recorded["version"]
    with stubs.installed(recorded) as modules:
        assert interface.load() is modules[interface.module]


@pytest.mark.parametrize(("interface", "name"), NAMES, ids=[name for _, name in NAMES])
def test_a_missing_name_is_named(interface: Interface, name: str) -> None:
    recorded = copy.deepcopy(stubs.recording(interface.package))
    if name == "FusedMoEActivationFormat.Standard":
        recorded["modules"][interface.module]["FusedMoEActivationFormat"]["constants"] = ["Else"]
    else:
        where, key = described(recorded, interface, name)
        inherited = name.startswith("FusedMoEPrepareAndFinalizeModular.") and key not in where
        if inherited:
            where = recorded["modules"][interface.module]["FusedMoEPrepareAndFinalize"]["methods"]
        del where[key]
    with stubs.installed(recorded), pytest.raises(AdapterError) as caught:
        interface.load()
    assert f"has no {name}" in str(caught.value)
    assert f"written for {interface.package} {interface.version}" in str(caught.value)


METHODS = [
    (interface, name)
    for interface, name in NAMES
    if "." in name and interface.signatures[name] and "Modular" not in name
] + [(vllm.KERNEL, f"FusedMoEPrepareAndFinalizeModular.{name}") for name in ("prepare", "finalize")]


@pytest.mark.parametrize(("interface", "name"), METHODS, ids=[name for _, name in METHODS])
def test_a_changed_signature_is_named(interface: Interface, name: str) -> None:
    recorded = copy.deepcopy(stubs.recording(interface.package))
    where, key = described(recorded, interface, name)
    where[key]["parameters"][-1] = "renamed"
    with stubs.installed(recorded), pytest.raises(AdapterError, match=name) as caught:
        interface.load()
    assert "renamed" in str(caught.value)


ADAPTERS = [
    (vllm.KERNEL, vllm.FuscocPrepareAndFinalize, "FusedMoEPrepareAndFinalizeModular"),
    (sglang.BASE, sglang.FuscocDispatcher, "BaseDispatcher"),
]


@pytest.mark.parametrize(("interface", "adapter", "base"), ADAPTERS, ids=["vllm", "sglang"])
def test_methods_take_what_the_framework_passes(
    interface: Interface, adapter: type, base: str
) -> None:
    with stubs.installed(stubs.recording(interface.package)) as modules:
        framework = getattr(modules[interface.module], base)
        made = interface.implement(adapter, framework)
        assert issubclass(made, framework)
        for name in framework.__abstractmethods__:
            theirs, ours = (inspect.getattr_static(each, name) for each in (framework, made))
            if not isinstance(theirs, property):
                assert list(inspect.signature(ours).parameters) == list(
                    inspect.signature(theirs).parameters
                )


@pytest.mark.parametrize(("interface", "adapter", "base"), ADAPTERS, ids=["vllm", "sglang"])
def test_a_new_demand_is_named(interface: Interface, adapter: type, base: str) -> None:
    recorded = copy.deepcopy(stubs.recording(interface.package))
    new = {"parameters": ["self"], "decorators": ["abstractmethod"]}
    recorded["modules"][interface.module][base]["methods"]["new_demand"] = new
    with stubs.installed(recorded) as modules, pytest.raises(AdapterError, match="new_demand"):
        interface.implement(adapter, getattr(modules[interface.module], base))


def test_a_missing_framework_is_named() -> None:
    nowhere = Interface("nowhere", "1.0", "nowhere.at.all", {})
    with pytest.raises(AdapterError, match=r"nowhere 1\.0, installed is none"):
        nowhere.load()


CASES = {
    "ragged": Case((9, 4)),
    "an idle rank": Case((5, 0), options=(("max_sources", 9),)),
    "padding of data-parallel ranks": Case((6, 3), keep=0.5, options=(("max_sources", 9),)),
    "nothing for a rank": Case((4, 3), crowd=True),
    "no choice at all": Case((2, 1), keep=0.0),
    "weights on the input": Case((7, 2), topk=1, on_input=True),
    "no context": Case((5, 3), told="no context", options=(("max_sources", 9),)),
    "no metadata": Case((5, 3), told="no metadata", options=(("max_sources", 9),)),
}


@pytest.mark.parametrize("align", [1, 4])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_vllm_layer(pool: Pool, align: int, case: Case) -> None:
    path = specs.artifact(specs.routed("f32", keys=8, topk=case.topk, align=align)).path
    assert max(pool.run(modular_kernel.layer_error, 2, str(path), case)) < 1e-5


def test_vllm_scales_leave_unused_rows_out(pool: Pool) -> None:
    """One scale for all rows, of which some hold anything; within what e4m3 holds."""
    path = specs.artifact(specs.routed("f32", keys=8, topk=2, align=4)).path
    case = Case((6, 4), scaled=True, options=(("max_sources", 6),))
    assert max(pool.run(modular_kernel.layer_error, 2, str(path), case)) < 0.2


def test_vllm_rows_travel_in_8_bits(pool: Pool, in_8_bits: str) -> None:
    """Within what e4m3 holds, with no more rows than the tokens of a step can need."""
    case = Case((6, 4), in_blocks=True, options=(("max_sources", 9),))
    assert max(pool.run(modular_kernel.layer_error, 2, in_8_bits, case)) < 0.1


@pytest.mark.parametrize(
    ("defer", "asked"), [(True, "rows as they are"), (False, "in blocks of None")]
)
def test_vllm_experts_that_want_other_rows(
    pool: Pool, in_8_bits: str, defer: bool, asked: str
) -> None:
    with pytest.raises(AdapterError, match=rf"in blocks of 128, and the experts want .*{asked}"):
        pool.run(modular_kernel.quantised_elsewise, 2, in_8_bits, defer)


def test_vllm_experts_elsewhere(pool: Pool) -> None:
    path = specs.artifact(specs.routed("f32", keys=8, topk=2)).path
    with pytest.raises(AdapterError, match="places 4 experts on this rank, not in the blocks of 4"):
        pool.run(modular_kernel.misplaced, 2, str(path))


@pytest.mark.parametrize("defer", [False, True])
def test_vllm_quantises_after_dispatch(pool: Pool, defer: bool) -> None:
    path = specs.artifact(specs.routed("f32", keys=8, topk=2)).path
    assert all(pool.run(layers.vllm_quantised, 2, str(path), defer))


def test_vllm_weights_on_the_input_of_several_experts(pool: Pool) -> None:
    path = specs.artifact(specs.routed("f32", keys=8, topk=2)).path
    with pytest.raises(AdapterError, match="only with topk = 1"):
        pool.run(modular_kernel.layer_error, 2, str(path), Case((3, 3), on_input=True))


@pytest.mark.parametrize("align", [1, 4])
def test_sglang_layer(pool: Pool, align: int) -> None:
    path = specs.artifact(specs.routed("f32", keys=8, topk=2, align=align)).path
    assert max(pool.run(layers.sglang_layer, 2, str(path), 9)) < 1e-5


def test_sglang_rows_are_those_of_the_step(pool: Pool) -> None:
    path = specs.artifact(specs.routed("f32", keys=8, topk=2)).path
    assert max(pool.run(layers.sglang_layer, 2, str(path), 3, 9)) < 1e-5


def test_sglang_may_not_say_what_the_step_has(pool: Pool) -> None:
    path = specs.artifact(specs.routed("f32", keys=8, topk=2)).path
    assert max(pool.run(layers.sglang_layer, 2, str(path), 3, 9, False)) < 1e-5


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (specs.FIELDS, "not one of tokens to experts"),
        (specs.patches(), "not one of tokens to experts"),
        (specs.routed(placement="cyclic"), "places experts by cyclic"),
    ],
    ids=["several fields", "dense", "cyclic"],
)
def test_other_shuffles_are_refused(pool: Pool, text: str, problem: str) -> None:
    with pytest.raises(AdapterError, match=problem):
        pool.run(layers.opened, 2, str(specs.artifact(text).path))


@pytest.mark.parametrize("open_it", [layers.opened, layers.sglang_opened], ids=["vllm", "sglang"])
def test_one_rank_is_refused(pool: Pool, open_it: Any) -> None:
    path = specs.artifact(specs.routed("f32", keys=8, topk=2)).path
    rest = () if open_it is layers.opened else ({},)
    with pytest.raises(AdapterError, match="one rank has all experts"):
        pool.run(open_it, 1, str(path), *rest)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"num_local_experts": 5}, "experts_per_rank = 5"),
        (
            {"runner_backend": SimpleNamespace(value="flashinfer_trtllm")},
            "flashinfer_trtllm is none",
        ),
        ({"no_combine": True}, "no_combine cannot be combined"),
    ],
    ids=["shared experts", "runner", "no combine"],
)
def test_sglang_layers_that_are_refused(pool: Pool, changes: Any, problem: str) -> None:
    path = specs.artifact(specs.routed("f32", keys=8, topk=2)).path
    with pytest.raises(AdapterError, match=problem):
        pool.run(layers.sglang_opened, 2, str(path), changes)
