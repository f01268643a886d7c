"""Modules made of recorded interfaces: what an adapter would import, without the framework."""

from __future__ import annotations

import enum
import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

Recording = dict[str, Any]


def recording(package: str) -> Recording:
    path = Path(__file__).with_name("interfaces") / f"{package}.json"
    loaded: Recording = json.loads(path.read_text())
    return loaded


@contextmanager
def installed(recorded: Recording) -> Iterator[dict[str, ModuleType]]:
    """The recorded modules can be imported meanwhile; they are returned by name."""
    before = dict(sys.modules)
    modules: dict[str, ModuleType] = {}
    for name, members in recorded["modules"].items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            parent = ".".join(parts[:end])
            module = modules.setdefault(parent, ModuleType(parent))
            module.__path__ = []
        for member, described in members.items():
            setattr(modules[name], member, _make(member, described, vars(modules[name])))
    sys.modules.update(modules)
    try:
        yield modules
    finally:
        for name in modules:
            sys.modules.pop(name)
            if name in before:
                sys.modules[name] = before[name]


def without_context(modules: dict[str, ModuleType]) -> None:
    """vLLM says nothing of the step that runs."""
    context: Any = modules["vllm.forward_context"]
    context.is_forward_context_available = lambda: False


def _make(name: str, described: Recording, scope: dict[str, Any]) -> Any:
    if "parameters" in described:
        return _function(name, described)
    if "Enum" in described["bases"]:
        return enum.Enum(name, described["constants"])
    bases = tuple(scope[base] for base in described["bases"] if base in scope) or (ABC,)
    methods = {method: _function(method, each) for method, each in described["methods"].items()}
    if not described["fields"]:
        return type(ABC)(name, bases, methods)
    fields = [(field, Any, None) for field in described["fields"]]
    return make_dataclass(name, fields, bases=bases, namespace=methods)


def _function(name: str, described: Recording) -> Any:
    scope: dict[str, Any] = {}
    body = "pass" if name == "__init__" else "raise NotImplementedError"
    exec(f"def {name}({', '.join(described['parameters'])}): {body}", scope)
    made: Any = scope[name]
    wrappers: dict[str, Callable[[Any], Any]] = {
        "abstractmethod": abstractmethod, "property": property, "staticmethod": staticmethod,
        "classmethod": classmethod,
    }  # fmt: skip
    for decorator in described["decorators"]:  # sorted: abstractmethod comes before property
        made = wrappers.get(decorator, lambda function: function)(made)
    return made
