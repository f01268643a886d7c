"""What an adapter expects of a framework, compared with what is installed."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from fuscoc_runtime.errors import AdapterError


@dataclass(frozen=True)
class Interface:
    """One module of a framework, as it was when the adapter was written.

    Attributes:
        package, version: the distribution that was read.
        module: the module, by its full name.
        signatures: parameters by function, class or ``Class.method``, in order, without ``self``;
            None for a property or anything else without parameters.
    """

    package: str
    version: str
    module: str
    signatures: Mapping[str, tuple[str, ...] | None]

    def load(self) -> Any:
        """The module, if it still is what the adapter was written for.

        Raises:
            AdapterError: the package is missing, or something in it has changed; says what.
        """
        try:
            module = importlib.import_module(self.module)
        except ModuleNotFoundError as error:
            raise self.problem(f"{self.module} cannot be imported ({error})") from error
        for name, parameters in self.signatures.items():
            found: Any = module
            for part in name.split("."):
                found = inspect.getattr_static(found, part, None)
            if found is None:
                raise self.problem(f"{self.module} has no {name}")
            if parameters is not None and (actual := _parameters(found)) != parameters:
                raise self.problem(
                    f"{name} takes ({', '.join(actual)}) and not ({', '.join(parameters)})"
                )
        return module

    def implement(self, implementation: type, base: type) -> type:
        """``implementation`` as a class that the framework takes for a ``base``.

        Raises:
            AdapterError: ``base`` demands a method that the adapter does not have.
        """
        made: Any = type(implementation.__name__, (implementation, base), {})
        missing = sorted(getattr(made, "__abstractmethods__", ()))
        if missing:
            raise self.problem(f"{base.__name__} demands {', '.join(missing)}")
        return made  # type: ignore[no-any-return]

    def problem(self, problem: str) -> AdapterError:
        """An error that names the installed version and the one that was expected."""
        try:
            installed = metadata.version(self.package)
        except metadata.PackageNotFoundError:
            installed = "none"
        return AdapterError(
            self.package,
            f"{problem}; the adapter was written for {self.package} {self.version}, "
            f"installed is {installed}",
        )


def specialise(module: Any, mixin: type) -> None:
    """Give an ``nn.Module`` a class of the same name, with the methods of ``mixin`` before its
    own."""
    kind = type(module)
    members = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    module.__class__ = type(kind.__name__, (mixin, kind), members)


def _parameters(found: Any) -> tuple[str, ...]:
    if isinstance(found, staticmethod | classmethod):
        found = found.__func__
    names = tuple(inspect.signature(found).parameters)
    return names[1:] if names[:1] == ("self",) else names
