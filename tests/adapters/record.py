"""Record a framework's interfaces from its source text, which need not be importable.

    python -m tests.adapters.record vllm 0.33.0 DIRECTORY

DIRECTORY holds what the wheel of that version holds. The result is ``interfaces/vllm.json``; a
test that then fails shows what has changed for the adapter.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

INTERFACES = Path(__file__).with_name("interfaces")
VLLM = "vllm.model_executor.layers.fused_moe"
SGLANG = "sglang.srt.layers.moe"
RECORDED = {
    "vllm": {
        f"{VLLM}.modular_kernel": (
            "FusedMoEActivationFormat",
            "ExpertTokensMetadata",
            "FusedMoEPrepareAndFinalize",
            "FusedMoEPrepareAndFinalizeModular",
        ),
        f"{VLLM}.utils": ("moe_kernel_quantize_input",),
        "vllm.forward_context": (
            "DPMetadata",
            "get_forward_context",
            "is_forward_context_available",
        ),
    },
    "sglang": {
        f"{SGLANG}.token_dispatcher.base": ("CombineInputChecker", "BaseDispatcher"),
        f"{SGLANG}.token_dispatcher.standard": ("StandardDispatchOutput", "StandardCombineInput"),
        "sglang.srt.layers.dp_attention": ("get_dp_global_num_tokens",),
        f"{SGLANG}.topk": ("TopKOutputChecker", "StandardTopKOutput", "BypassedTopKOutput"),
    },
}


def record(package: str, version: str, directory: Path) -> dict[str, Any]:
    modules = {}
    for module, names in RECORDED[package].items():
        tree = ast.parse((directory / Path(*module.split("."))).with_suffix(".py").read_text())
        found = {
            node.name: _describe(node)
            for node in tree.body
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names
        }
        modules[module] = {name: found[name] for name in names}
    return {"package": package, "version": version, "modules": modules}


def _describe(node: ast.ClassDef | ast.FunctionDef) -> dict[str, Any]:
    if isinstance(node, ast.FunctionDef):
        arguments = node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        decorators = sorted(ast.unparse(decorator) for decorator in node.decorator_list)
        return {"parameters": names, "decorators": decorators}
    constants = [item for item in node.body if isinstance(item, ast.Assign)]
    return {
        "bases": [ast.unparse(base) for base in node.bases],
        "fields": [ast.unparse(i.target) for i in node.body if isinstance(i, ast.AnnAssign)],
        "constants": [ast.unparse(target) for item in constants for target in item.targets],
        "methods": {i.name: _describe(i) for i in node.body if isinstance(i, ast.FunctionDef)},
    }


def main() -> None:
    package, version, directory = sys.argv[1:]
    text = json.dumps(record(package, version, Path(directory)), indent=1)
    (INTERFACES / f"{package}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
