"""The dispatchers of vLLM and SGLang out of a release's wheel, unpacked, without what they need.

``unzip -q vllm-0.33.0-*.whl 'vllm/*.py' -d FOLDER``: modules that say what a dispatcher does are
executed as they are; whatever else they import is a name that stands for anything.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.abc import Loader, MetaPathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

import fuscoc_runtime.deep_ep as deep_ep
from tests.deep_ep.cases import Case, to_fp8

MOE = "vllm.model_executor.layers.fused_moe"
VLLM = {
    f"{MOE}.modular_kernel",
    f"{MOE}.topk_weight_and_reduce",
    f"{MOE}.prepare_finalize.deepep_ht",
    f"{MOE}.prepare_finalize.deepep_ll",
}
TOKENS = "sglang.srt.layers.moe.token_dispatcher"
SGLANG = {f"{TOKENS}.base", f"{TOKENS}.deepep", "sglang.srt.layers.moe.utils"}


class Anything(type):
    """A class, so that it can be called, subclassed and be a part of an annotation; and false."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return anything(name)

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        return anything(cls.__name__)

    def __bool__(cls) -> bool:
        return False

    def __iter__(cls) -> Iterator[Any]:
        return iter(())


def anything(name: str) -> Any:
    return type.__call__(Anything, name, (), {})


class Given(ModuleType):
    """A module whose names are what was given, modules that are ``known``, and anything else."""

    known: frozenset[str]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"
        return importlib.import_module(full) if full in self.known else anything(name)


class Finder(MetaPathFinder, Loader):
    """Finds the modules of a package: real ones in a folder, others made of names."""

    def __init__(
        self, folder: Path, package: str, real: set[str], given: Mapping[str, Mapping[str, Any]]
    ) -> None:
        self.folder, self.package, self.real, self.given = folder, package, real, given

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] != self.package:
            return None
        if name in self.real:
            return spec_from_file_location(
                name, (self.folder / Path(*name.split("."))).with_suffix(".py")
            )
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        made = Given(spec.name)
        made.known = frozenset({*self.real, *self.given})
        vars(made).update(self.given.get(spec.name, {}))
        return made

    def exec_module(self, module: ModuleType) -> None:
        pass


def load(
    source: str, package: str, real: set[str], given: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """The real modules by their last name, in a process of its own: they stay imported."""
    deep_ep.install()
    if not any(isinstance(each, Finder) and each.package == package for each in sys.meta_path):
        sys.meta_path.insert(0, Finder(Path(source), package, real, given))
    return {name.rsplit(".", 1)[1]: importlib.import_module(name) for name in sorted(real)}


@cache
def vllm(source: str) -> SimpleNamespace:
    """vLLM's two dispatchers for DeepEP, and what its experts say of weights."""

    def quantise(x: torch.Tensor, scale: Any, quant_dtype: Any, *_: Any, **__: Any) -> Any:
        return (x, None) if quant_dtype is None else to_fp8(x)

    given: dict[str, dict[str, Any]] = {
        "vllm.utils.torch_utils": {"PIN_MEMORY": False},
        f"{MOE}.utils": {"moe_kernel_quantize_input": quantise},
        "vllm.v1.worker.ubatching": {
            "dbo_current_ubatch_id": lambda: 0,
            "dbo_get_previous_event": lambda _: None,
        },
    }
    modules = load(source, "vllm", VLLM, given)
    return SimpleNamespace(
        HighThroughput=modules["deepep_ht"].DeepEPHTPrepareAndFinalize,
        LowLatency=modules["deepep_ll"].DeepEPLLPrepareAndFinalize,
        NO_OP=modules["topk_weight_and_reduce"].TopKWeightAndReduceNoOP(),
        DELEGATE=modules["topk_weight_and_reduce"].TopKWeightAndReduceDelegate(),
    )


@cache
def sglang(source: str) -> SimpleNamespace:
    """SGLang's dispatcher, with kernels of DeepGEMM behind it, which want 8-bit floats."""
    resources, wanted = SimpleNamespace(buffers={}), SimpleNamespace(dtype="bf16", most=0)
    executes = SimpleNamespace(moe=SimpleNamespace(deepep_dispatcher_output_dtype="bf16"))
    limit = SimpleNamespace(get=lambda: wanted.most)
    given: dict[str, dict[str, Any]] = {
        "sglang.srt.environ": {
            "envs": SimpleNamespace(
                SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK=limit,
                SGLANG_ZBAL_LOCAL_MEM_SIZE=SimpleNamespace(get=lambda: 0),
                SGLANG_IN_DEEPGEMM_PRECOMPILE_STAGE=SimpleNamespace(get=lambda: False),
            )
        },
        "sglang.srt.layers.deep_gemm_wrapper": {
            "ENABLE_JIT_DEEPGEMM": True,
            "DEEPGEMM_BLACKWELL": False,
            "DEEPGEMM_SCALE_UE8M0": False,
        },
        "sglang.srt.runtime_context": {
            "get_resources": lambda: resources,
            "get_server_args": lambda: True,
            "get_exec": lambda: executes,
        },
        "sglang.srt.utils": {"get_cuda_version": lambda: (13, 0)},
        "sglang.kernels.ops.quantization.fp8_kernel": {
            "sglang_per_token_group_quant_fp8": lambda x, *_, **__: to_fp8(x),
        },
    }
    modules = load(source, "sglang", SGLANG, given)
    if not torch.cuda.is_available():  # it asks how many SMs there are
        torch.cuda.get_device_properties = lambda device: SimpleNamespace(multi_processor_count=132)
    module, modes = modules["deepep"], modules["utils"].DeepEPMode

    def dispatchers(
        num: int, group: Any, is_low_latency: bool, is_fp8: bool, case: Case, most: int
    ) -> tuple[list[Any], Any]:
        executes.moe.deepep_dispatcher_output_dtype = "fp8" if is_fp8 else "bf16"
        wanted.most = most
        resources.buffers.clear()
        mode = modes.LOW_LATENCY if is_low_latency else modes.NORMAL
        made = [
            module.DeepEPDispatcher(
                group=group, router_topk=case.shape.topk, permute_fusion=True,
                num_experts=case.shape.experts, num_local_experts=case.local,
                hidden_size=case.shape.hidden, params_dtype=torch.bfloat16, deepep_mode=mode,
                async_finish=True, return_recv_hook=True,
            )
            for _ in range(num)
        ]  # fmt: skip
        return made, made[0]._get_impl()._get_buffer()

    return SimpleNamespace(dispatchers=dispatchers)
