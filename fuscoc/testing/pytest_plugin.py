"""pytest collects ``.fsc`` files: every shuffle's properties are tests.

A file is collected when it is named on the command line (``pytest moe.fsc``) or matches a pattern
of the ini option ``fuscoc_specs``. Entry point ``pytest11``; imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

DEFAULT_EXAMPLES = 100


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--fuscoc-examples``, ``-seed``, ``-topology`` and the ini option ``fuscoc_specs``."""
    group = parser.getgroup("fuscoc", "property tests of .fsc specs")
    group.addoption(
        "--fuscoc-examples",
        type=int,
        default=DEFAULT_EXAMPLES,
        metavar="N",
        help="routings to plan for every shuffle of a spec; a tenth as many are executed",
    )
    group.addoption(
        "--fuscoc-seed", type=int, default=None, metavar="N", help="repeat the examples of a run"
    )
    group.addoption(
        "--fuscoc-topology",
        action="append",
        default=[],
        metavar="NODESxRANKS",
        help="draw only this cluster; may be repeated",
    )
    parser.addini(
        "fuscoc_specs", "patterns of .fsc files to test, relative to the root", "args", []
    )


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """A collector for a spec that is to be tested."""
    if file_path.suffix != ".fsc":
        return None
    root = parent.config.rootpath
    patterns = parent.config.getini("fuscoc_specs")
    wanted = any(file_path in root.glob(pattern) for pattern in patterns)
    if wanted or parent.session.isinitpath(file_path):
        return SpecFile.from_parent(parent, path=file_path)
    return None


class SpecFile(pytest.File):
    """A spec; its tests are ``plan`` and ``execution`` of every shuffle."""

    def collect(self) -> Iterator[pytest.Item]:
        from fuscoc.diagnostics import CompileError
        from fuscoc.testing.runner import PROPERTIES
        from fuscoc.testing.spec import load_specs

        try:
            specs = load_specs(self.path)
        except CompileError as error:
            raise self.CollectError(str(error)) from None
        for spec in specs:
            for name in PROPERTIES:
                yield PropertyItem.from_parent(
                    self,
                    name=f"{spec.shuffle.name}::{name}",
                    shuffle=spec.shuffle.name,
                    tested=name,
                )


class PropertyFailure(Exception):
    """A property that does not hold; the message is the whole explanation."""


class PropertyItem(pytest.Item):
    """One property of one shuffle."""

    def __init__(self, *, shuffle: str, tested: str, **arguments: object) -> None:
        super().__init__(**arguments)  # type: ignore[arg-type]
        self.shuffle, self.tested = shuffle, tested

    def runtest(self) -> None:
        """Search for a counterexample."""
        from rich.console import Console

        from fuscoc.diagnostics import CompileError
        from fuscoc.testing.report import explain
        from fuscoc.testing.routes import NoRoutingError
        from fuscoc.testing.runner import run_tests
        from fuscoc_runtime.errors import TopologyError

        try:
            report = run_tests(
                self.path,
                examples=self.config.getoption("--fuscoc-examples"),
                seed=self.config.getoption("--fuscoc-seed"),
                topologies=self.config.getoption("--fuscoc-topology"),
                shuffle=self.shuffle,
                properties=(self.tested,),
                console=Console(quiet=True),
            )
        except (CompileError, NoRoutingError, TopologyError) as error:
            raise PropertyFailure(str(error)) from None
        for each in report.properties:
            if each.failure is not None:
                raise PropertyFailure(f"{explain(report, each)}\nseed: {report.seed}")

    def repr_failure(  # type: ignore[override]
        self, excinfo: pytest.ExceptionInfo[BaseException]
    ) -> str:
        """The explanation alone, without a traceback through the runner."""
        if isinstance(excinfo.value, PropertyFailure):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int | None, str]:
        """Where pytest says that the test is."""
        return self.path, None, self.name
