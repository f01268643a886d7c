"""The page itself: a template, a style sheet, plotly and the scripts that draw with it."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import jinja2
from plotly.offline import get_plotlyjs

from fuscoc.simulate.explorer import words
from fuscoc.simulate.explorer.payload import payload
from fuscoc.simulate.explorer.tables import tables
from fuscoc.simulate.record import Record

ASSETS = files(__package__) / "assets"

SCRIPTS = (
    "unpack.js", "look.js", "overview.js", "cluster.js", "timeline.js", "stages.js", "traffic.js",
    "sweep.js", "controls.js", "page.js",
)  # fmt: skip
"""One script in this order: each uses what comes before it."""


def render(record: Record) -> str:
    """The whole page. Nothing in it reaches for the network, and its policy forbids to."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    library = get_plotlyjs()
    script = "\n".join(_asset(name) for name in SCRIPTS)
    return environment.from_string(_asset("page.html.jinja")).render(
        title=record.title,
        headline=words.headline(record),
        lead=words.lead(record),
        tiles=words.tiles(record),
        tables=list(tables(record)),
        style=_asset("style.css"),
        data=_json(payload(record)),
        library=library,
        script=script,
        hashes=" ".join(f"'sha256-{_sha256(each)}'" for each in (library, script)),
    )


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _json(document: Mapping[str, Any]) -> str:
    """JSON that no ``</script>`` and no comment can end."""
    return json.dumps(document, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
