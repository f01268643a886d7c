"""The language server, asked by a real client over its standard input and output."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pygls")

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

from fuscoc.diagnostics import DiagnosticSink
from fuscoc.lang.format import format_text
from fuscoc.lang.parser import parse
from fuscoc.lsp.hover import hover
from fuscoc.lsp.names import occurrence_at, occurrences
from fuscoc.lsp.server import Positions
from fuscoc.source import SourceFile, Span
from tests.lang.test_format import tree

ROOT = Path(__file__).parents[2]
MOE = (ROOT / "examples" / "moe.fsc").read_text(encoding="utf-8")
VIT = (ROOT / "examples" / "vit_patches.fsc").read_text(encoding="utf-8")
SPECS = sorted([*ROOT.glob("examples/*.fsc"), *ROOT.glob("tests/errors/*.fsc")])
URI = "file:///specs/moe.fsc"
SERVER = "from fuscoc.cli import main; main()"
PATIENCE = 60.0


class Editor:
    """A client with one document open."""

    def __init__(self, client: LanguageClient, text: str) -> None:
        self.client = client
        self.text = text
        self.version = 0
        self.published: asyncio.Queue[lsp.PublishDiagnosticsParams] = asyncio.Queue()

    async def diagnostics(self) -> list[lsp.Diagnostic]:
        """The next diagnostics that the server sends."""
        found = await asyncio.wait_for(self.published.get(), PATIENCE)
        assert found.uri == URI
        return list(found.diagnostics)

    def change(self, text: str) -> None:
        self.version += 1
        self.text = text
        whole = lsp.TextDocumentContentChangeWholeDocument(text)
        document = lsp.VersionedTextDocumentIdentifier(self.version, URI)
        self.client.text_document_did_change(lsp.DidChangeTextDocumentParams(document, [whole]))

    def at(self, piece: str, inside: int = 1) -> lsp.TextDocumentPositionParams:
        """The position of a piece of the text, some characters in."""
        position = Positions(self.text, None).position(self.text.index(piece) + inside)
        return lsp.TextDocumentPositionParams(lsp.TextDocumentIdentifier(URI), position)

    async def hover(self, piece: str, inside: int = 1) -> str:
        at = self.at(piece, inside)
        found = await self.client.text_document_hover_async(
            lsp.HoverParams(at.text_document, at.position)
        )
        assert found is not None
        assert isinstance(found.contents, lsp.MarkupContent)
        return found.contents.value

    async def definition(self, piece: str, inside: int = 1) -> str:
        """The text at which the definition of a name begins."""
        at = self.at(piece, inside)
        found = await self.client.text_document_definition_async(
            lsp.DefinitionParams(at.text_document, at.position)
        )
        assert isinstance(found, lsp.Location)
        span = Positions(self.text, None).span(found.range)
        line = self.text.rindex("\n", 0, span.start) + 1
        return self.text[line : span.end].strip()

    async def format(self) -> str:
        """The text after formatting."""
        edits = await self.client.text_document_formatting_async(
            lsp.DocumentFormattingParams(
                lsp.TextDocumentIdentifier(URI), lsp.FormattingOptions(2, True)
            )
        )
        return self.edited(edits or [])

    def edited(self, edits) -> str:
        text = self.text
        for edit in edits:
            span = Positions(self.text, None).span(edit.range)
            text = text[: span.start] + edit.new_text + text[span.end :]
        return text


@asynccontextmanager
async def editing(text: str) -> AsyncIterator[Editor]:
    """A client and a server that have introduced themselves; the text is open."""
    client = LanguageClient("test", "1")
    editor = Editor(client, text)

    @client.feature(lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS)
    def published(params: lsp.PublishDiagnosticsParams) -> None:
        editor.published.put_nowait(params)

    await client.start_io(sys.executable, "-c", SERVER, "lsp", "--stdio")
    answer = await asyncio.wait_for(
        client.initialize_async(lsp.InitializeParams(capabilities=lsp.ClientCapabilities())),
        PATIENCE,
    )
    assert answer.server_info is not None
    assert answer.server_info.name == "fuscoc"
    sync = answer.capabilities.text_document_sync
    assert isinstance(sync, lsp.TextDocumentSyncOptions)
    assert sync.change == lsp.TextDocumentSyncKind.Full  # pygls misplaces partial changes
    assert answer.capabilities.hover_provider
    assert answer.capabilities.definition_provider
    assert answer.capabilities.document_formatting_provider
    client.initialized(lsp.InitializedParams())
    document = lsp.TextDocumentItem(URI, "fuscoc", 0, text)
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(document))
    try:
        yield editor
    finally:
        await asyncio.wait_for(client.shutdown_async(None), PATIENCE)
        client.exit(None)
        await client.stop()


def test_a_good_spec_is_explained_and_formatted() -> None:
    async def session() -> None:
        async with editing(MOE) as editor:
            assert await editor.diagnostics() == []

            hover = await editor.hover("by_token[t]     of")
            assert hover.startswith("```fsc\nlayout by_token[t] of token\n```\n")
            assert "cells of 14,336 bytes (segment `token`)" in hover
            assert "`t`: tokens, stride 14,336 bytes" in hover
            assert "`hidden` = 7,168" in await editor.hover("hidden] }")
            assert "14,336 bytes" in await editor.hover("of token  packed", 4)
            assert "bf16[7168]: 14,336 bytes" in await editor.hover("x : bf16", 0)
            packed = await editor.hover("by_expert[r(t, k), *]  dedup")
            assert "256 keys, each with slots of 14,336 bytes" in packed
            assert "keys are placed by block" in packed
            assert "i64[tokens, 8]" in await editor.hover("r(t, k), *]  dedup")
            assert "f32[tokens, 8]" in await editor.hover("w)\n", 0)

            assert await editor.definition("r(t, k), *]  dedup", 0) == "route   r"
            assert await editor.definition("by_expert[r(t, k), *] -> ") == "layout  by_expert"
            assert (await editor.definition("hidden] }")).endswith("const hidden")

            assert await editor.format() == MOE
            editor.change(MOE.replace("  ", " "))
            await editor.diagnostics()
            formatted = await editor.format()
            assert tree(formatted) == tree(MOE)
            assert formatted == format_text(SourceFile("moe.fsc", editor.text))

    asyncio.run(session())


def test_mistakes_are_shown_while_typing_and_fixed() -> None:
    async def session() -> None:
        async with editing(MOE.replace("dispatch by_token", "dispatch by_tokn")) as editor:
            (found,) = await editor.diagnostics()
            assert (found.code, found.source) == ("FSC011", "fuscoc")
            assert found.severity == lsp.DiagnosticSeverity.Error
            assert found.message.splitlines()[0] == "`by_tokn` is not declared"
            assert (found.range.start, found.range.end) == (
                lsp.Position(17, 11),
                lsp.Position(17, 18),
            )
            assert found.related_information is not None
            assert found.related_information[0].location.range.start.line == 10

            actions = await editor.client.text_document_code_action_async(
                lsp.CodeActionParams(
                    lsp.TextDocumentIdentifier(URI), found.range, lsp.CodeActionContext([found])
                )
            )
            assert actions is not None
            (action,) = actions
            assert isinstance(action, lsp.CodeAction)
            assert action.is_preferred
            assert action.edit is not None
            assert action.edit.changes is not None
            editor.change(editor.edited(action.edit.changes[URI]))
            assert editor.text == MOE
            assert await editor.diagnostics() == []

            editor.change("shuffle a { index")
            (syntax,) = await editor.diagnostics()
            assert syntax.code == "FSC001"
            assert await editor.format() == editor.text
            assert await editor.hover("a {", inside=0) == "```fsc\nshuffle a\n```"
            editor.change(MOE.replace("index k : topk", "index k :"))
            (syntax,) = await editor.diagnostics()
            assert "stride 14,336 bytes" in await editor.hover("by_token[t]")

            editor.change(MOE.replace("index k", "const spare = 1\n  index k"))
            (unused,) = await editor.diagnostics()
            assert unused.severity == lsp.DiagnosticSeverity.Warning
            assert list(unused.tags or ()) == [lsp.DiagnosticTag.Unnecessary]

            editor.client.text_document_did_close(
                lsp.DidCloseTextDocumentParams(lsp.TextDocumentIdentifier(URI))
            )
            assert await editor.diagnostics() == []

    asyncio.run(session())


CODECS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}


@given(st.text(st.sampled_from("aé中😀\t \n\r")), st.sampled_from(sorted(CODECS)))
def test_positions_count_as_editors_do(text: str, encoding: str) -> None:
    positions = Positions(text, encoding)
    codec, unit_bytes = CODECS[encoding]
    offset = 0
    parts = re.split(r"(\r\n|\r|\n)", text)
    for number, (line, end) in enumerate(zip(parts[::2], [*parts[1::2], ""], strict=True)):
        for column in range(len(line) + 1):
            place = lsp.Position(number, len(line[:column].encode(codec)) // unit_bytes)
            assert positions.position(offset + column) == place
            assert positions.offset(place) == offset + column
        assert positions.offset(lsp.Position(number, 999)) == offset + len(line)
        offset += len(line + end)
    assert positions.span(positions.range(Span(0, len(text)))) == Span(0, len(text))
    assert positions.offset(lsp.Position(len(parts), 0)) == len(text)


@pytest.mark.parametrize("text", [MOE, VIT])
def test_every_name_of_an_example_leads_to_where_it_is_declared(text: str) -> None:
    source = SourceFile("test.fsc", text)
    for shuffle in tree(text):
        found = list(occurrences(shuffle))
        spans = {each.span for each in found}
        for each in found:
            assert text[each.span.start : each.span.end] == each.name
            assert each.declaration in spans
            assert occurrence_at(source, each.span.start + 1) is not None
            declared = each.declaration
            assert declared is not None
            assert text[declared.start : declared.end] == each.name


@pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
def test_every_name_of_every_spec_has_something_to_show(path: Path) -> None:
    source = SourceFile(path.name, path.read_bytes().decode(errors="replace"))
    for shuffle in parse(source, DiagnosticSink(source)):
        for each in occurrences(shuffle):
            assert each.name in hover(source, each)


def test_a_reply_shows_its_rows() -> None:
    text = (ROOT / "examples" / "embedding.fsc").read_text(encoding="utf-8")
    source = SourceFile("embedding.fsc", text)
    found = occurrence_at(source, text.index("sums["))
    assert found is not None
    assert "a row of 512 bytes (segment `pooled`) comes back for each `t`" in hover(source, found)


def test_numbers_of_a_cast_are_shown() -> None:
    text = (ROOT / "examples" / "vit_patches_normalised.fsc").read_text(encoding="utf-8")
    source = SourceFile("vit_patches_normalised.fsc", text)
    found = occurrence_at(source, text.rindex("mean"))
    assert found is not None
    assert found.declaration is not None
    assert found.declaration.start == text.index("mean = [")
    assert "`mean` = 0.485, 0.456, 0.406" in hover(source, found)


def test_numbers_of_a_call_are_shown() -> None:
    text = (ROOT / "examples" / "vit_patches_normalised.fsc").read_text(encoding="utf-8")
    text = text.replace("mean = [0.485, 0.456, 0.406]", "mean = input means : f32[c]")
    source = SourceFile("given.fsc", text)
    found = occurrence_at(source, text.rindex("mean"))
    assert found is not None
    said = "input `means`: 3 numbers of f32 for casts, given with every call"
    assert said in hover(source, found)


def test_fields_and_results_belong_to_their_owners() -> None:
    text = """shuffle a {
  index n : images
  index i : height(n) / 2
  segment s { n : u8, height : f32 }
  layout  in[n, i] of s
  layout  out[o]   of s  dense(ranks * 100)
  route   to(n) -> (rank, n) = input to : int64[2]
  dispatch in[n, i] -> out[to(n).n + i] on to(n).rank
}"""
    source = SourceFile("test.fsc", text)

    def declaration(piece: str, inside: int = 0) -> str:
        found = occurrence_at(source, text.index(piece) + inside)
        assert found is not None
        if found.declaration is None:
            return "built in"
        line = text.rindex("\n", 0, found.declaration.start) + 1
        return text[line : found.declaration.end].strip()

    assert declaration("n, i] of s") == "index n"
    assert declaration("n : u8") == "segment s { n"
    assert declaration("n + i]") == "route   to(n) -> (rank, n"
    assert declaration("rank\n}") == "route   to(n) -> (rank"
    assert declaration("height(n)") == "index i : height"
    assert declaration("ranks * 100") == "built in"
