"""README and docs: links lead somewhere, names exist, commands are understood."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from fuscoc.cli import load_command
from fuscoc.testing import INVARIANTS
from tests.docs.pages import PAGES, ROOT, command_lines, prose

SOURCES = (ROOT, ROOT / "fuscoc", ROOT / "runtime" / "fuscoc_runtime")
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
TARGETS = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
CODE = [
    path
    for folder in ("fuscoc", "runtime", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__)
]

pages = pytest.mark.parametrize("page", PAGES)


def anchors(text: str) -> set[str]:
    """What code hosts make of headings: lower case, dashes, no punctuation."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each).strip().lower().replace(" ", "-") for each in headings}


@pages
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if anchor:
            assert anchor in anchors(path.read_text(encoding="utf-8")), target


@pages
def test_names_exist(page: str) -> None:
    """Files of this repository, make's targets, extras and environment variables."""
    text = PAGES[page]
    for name in re.findall(r"`((?:fuscoc|tests|examples|benchmarks|plan|engine)/[\w./-]+)`", text):
        placeholder = name.replace("nnn", "001")  # `FSCnnn` is any code
        assert any((root / placeholder).exists() for root in SOURCES), name
    for target in re.findall(r"`make (\w+)`", text):
        assert target in TARGETS, target
    for extra in re.findall(r"fuscoc\[(\w+)\]", text):
        assert extra in EXTRAS, extra
    for name in set(re.findall(r"\bFUSCOC_[A-Z_]+", text)):
        assert any(name in path.read_text(encoding="utf-8") for path in CODE), name


@pages
def test_commands_are_understood(page: str, files: Path) -> None:
    """Without running them."""
    for name, *arguments in command_lines(page):
        (files / "build" / "moe").mkdir(exist_ok=True)
        load_command(name).make_context(name, arguments)
    for words in re.findall(r"`fuscoc ([a-z][^`]*)`", prose(page)):
        name, *rest = shlex.split(words)
        if page.startswith("docs/benchmarks"):  # whose tables name contenders so
            continue
        options = {option for each in load_command(name).params for option in each.opts}
        used = {word.partition("=")[0] for word in rest if re.match(r"--?[A-Za-z]", word)}
        assert used <= options, words


def test_the_page_of_the_kernels_names_what_is_there() -> None:
    """In the first column, what the files of the heading have; every file has a heading."""
    folder = ROOT / "runtime" / "fuscoc_runtime" / "kernels"
    files = {path.name: path for path in (*folder.glob("include/*"), *folder.glob("device/*.py"))}
    sections = PAGES["runtime/fuscoc_runtime/kernels/README.md"].split("\n##")
    named = set()
    for heading, _, body in (section.partition("\n") for section in sections):
        here = re.findall(r"\w+\.(?:cuh|py)", heading)
        named.update(here)
        code = "".join(files[name].read_text(encoding="utf-8") for name in set(here))
        for column in re.findall(r"^\| (`.*?) \|", body if here else "", re.MULTILINE):
            for name in re.findall(r"`(\w+)`", column):
                assert re.search(rf"\b{name}\b", code), (heading, name)
    assert named == files.keys() - {"__init__.py"}


# Of the namespace: members are the business of what they belong to.
DEVICE_CODE = {
    ".py": r"^def (\w+)\(",
    ".cuh": r"^(?:template <.*>\s)?(?:__host__ )?__device__ (?:[\w:<>,&*]+ )*?[&*]?(\w+)\(|"
    r"^(?:template <[^;{}]*>\s)?struct (\w+)(?: :| \{)",
}


def test_the_page_of_the_kernels_names_all_that_is_there() -> None:
    """Every function and type of a file stands under its heading."""
    folder = ROOT / "runtime" / "fuscoc_runtime" / "kernels"
    sections = PAGES["runtime/fuscoc_runtime/kernels/README.md"].split("\n##")
    told: dict[str, set[str]] = {}
    for heading, _, body in (section.partition("\n") for section in sections):
        for name in re.findall(r"\w+\.(?:cuh|py)", heading):
            told.setdefault(name, set()).update(re.findall(r"`(?:\w+\.|\w+::)?(\w+)`", body))
    count = 0
    for path in (*folder.glob("include/*.cuh"), *folder.glob("device/*.py")):
        found = re.findall(DEVICE_CODE[path.suffix], path.read_text(encoding="utf-8"), re.MULTILINE)
        names = {name for each in found for name in ([each] if isinstance(each, str) else each)}
        if path.name != "__init__.py":
            assert names - {""} <= told[path.name], path.name
            count += len(names - {""})
    assert count > 300


def test_there_are_commands() -> None:
    assert sum(len(command_lines(page)) for page in PAGES) > 6


def test_invariants_are_listed_in_their_order() -> None:
    listed = re.findall(r"^\| `(check_\w+)`", PAGES["docs/property-testing.md"], re.MULTILINE)
    assert listed == [check.__name__ for check in INVARIANTS]


def test_options_of_plan_are_listed() -> None:
    listed = set(re.findall(r"`(--[\w-]+|-D)", PAGES["docs/planning.md"]))
    for option in load_command("plan").params:
        assert option.param_type_name != "option" or listed & {*option.opts}, option


def test_files_of_the_walk_say_what_is_quoted() -> None:
    """The table that follows one word from the text to its execution."""
    page = PAGES["docs/architecture.md"]
    section = page.partition("## One word, file by file")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w./]+)` \| `([^`]+)`", section, re.MULTILINE)
    assert len(rows) == section.count("\n| `")
    for name, quoted in rows:
        folder = ROOT / "runtime" if name.startswith("fuscoc_runtime/") else ROOT
        assert quoted in (folder / name).read_text(encoding="utf-8"), name
