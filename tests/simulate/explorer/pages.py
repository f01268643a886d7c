"""A page taken apart: its elements by an HTML parser, its data as a browser unpacks them."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import numpy as np

VOID = {"meta", "input", "br", "hr", "img", "link"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Elements below this one, with these attributes (``_`` for ``-``)."""
        wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
        found = []
        for child in self.children:
            if child.tag == tag and wanted.items() <= child.attributes.items():
                found.append(child)
            found += child.all(tag, **attributes)
        return found

    @property
    def text(self) -> str:
        """What is written in it, without its children's."""
        return "".join(self.words)


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("document", {})]

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attributes})
        self.open[-1].children.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag, f"</{tag}> closes something else"

    def handle_data(self, text: str) -> None:
        self.open[-1].words.append(text)


def parse(html: str) -> Element:
    """The document; every element that is opened must be closed."""
    parser = _Parser()
    parser.feed(html)
    parser.close()
    (document,) = parser.open
    return document


def unpack(page: Element) -> dict[str, Any]:
    """The record in the page, arrays in the places of what stands for them."""
    (element,) = page.all("script", id="data")
    data = json.loads(element.text)
    block = zlib.decompress(base64.b64decode(data.pop("block")))

    def restore(value: Any) -> Any:
        if isinstance(value, list):
            return [restore(each) for each in value]
        if not isinstance(value, dict):
            return value
        if {"at", "type", "shape"} == value.keys():
            dtype, count = np.dtype(f"<{value['type']}"), int(np.prod(value["shape"]))
            return np.frombuffer(block, dtype, count, value["at"]).reshape(value["shape"])
        return {name: restore(each) for name, each in value.items()}

    return restore(data)
