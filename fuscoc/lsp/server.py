"""The protocol: what an editor asks, answered from the text that it holds.

Nothing is kept between requests: checking a spec takes milliseconds. Editors send the whole text
with every change: pygls applies partial ones by Python's lines, which also end at a form feed or
U+2028, and those of the protocol do not.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from pathlib import PurePath

from lsprotocol import types as lsp
from lsprotocol.types import Position, PositionEncodingKind, Range
from pygls.lsp.server import LanguageServer
from pygls.workspace import TextDocument

import fuscoc
from fuscoc.diagnostics import CompileError, Diagnostic, Label
from fuscoc.lang.check import check_file
from fuscoc.lang.format import format_text
from fuscoc.lsp.hover import hover
from fuscoc.lsp.names import occurrence_at
from fuscoc.source import SourceFile, Span

_LINE_END = re.compile(r"\r\n|\n|\r")
_UNIT_BYTES = {
    PositionEncodingKind.Utf8: ("utf-8", 1),
    PositionEncodingKind.Utf16: ("utf-16-le", 2),
    PositionEncodingKind.Utf32: ("utf-32-le", 4),
}


class Positions:
    """Between character offsets of a text and positions in it."""

    def __init__(self, text: str, encoding: PositionEncodingKind | str | None) -> None:
        self._text = text
        kind = PositionEncodingKind(encoding or PositionEncodingKind.Utf16)
        self._codec, self._unit_bytes = _UNIT_BYTES[kind]
        self._starts = [0, *(match.end() for match in _LINE_END.finditer(text))]

    def position(self, offset: int) -> Position:
        """The position of a character."""
        line = bisect_right(self._starts, offset) - 1
        return Position(line, self._units(self._text[self._starts[line] : offset]))

    def offset(self, position: Position) -> int:
        """The character at a position; that of the line's end for one behind it."""
        if position.line >= len(self._starts):
            return len(self._text)
        start = self._starts[position.line]
        end = _LINE_END.search(self._text, start)
        units = 0
        for offset in range(start, end.start() if end else len(self._text)):
            if units >= position.character:
                return offset
            units += self._units(self._text[offset])
        return end.start() if end else len(self._text)

    def range(self, span: Span) -> Range:
        """The range of a span."""
        return Range(self.position(span.start), self.position(span.end))

    def span(self, range: Range) -> Span:
        """The span of a range."""
        return Span(self.offset(range.start), self.offset(range.end))

    def _units(self, text: str) -> int:
        return len(text.encode(self._codec, "surrogatepass")) // self._unit_bytes


SEVERITIES = {
    "error": lsp.DiagnosticSeverity.Error,
    "warning": lsp.DiagnosticSeverity.Warning,
}
UNUSED = "FSC090"
SHOWS_DIAGNOSTICS = (
    lsp.TEXT_DOCUMENT_DID_OPEN,
    lsp.TEXT_DOCUMENT_DID_CHANGE,
    lsp.TEXT_DOCUMENT_DID_SAVE,
)


class OpenText:
    """A text that an editor holds."""

    def __init__(self, document: TextDocument, server: LanguageServer) -> None:
        self.uri, self.version = document.uri, document.version
        self.source = SourceFile(PurePath(document.path or document.uri).name, document.source)
        self.positions = Positions(document.source, server.workspace.position_encoding)

    def offset(self, position: lsp.Position) -> int:
        """The character at a position."""
        return self.positions.offset(position)

    def location(self, span: Span) -> lsp.Location:
        """A place in this text."""
        return lsp.Location(self.uri, self.positions.range(span))

    def diagnostics(self) -> tuple[Diagnostic, ...]:
        """Everything that there is to say about the text."""
        try:
            return check_file(self.source).warnings
        except CompileError as error:
            return error.diagnostics


def make_server() -> LanguageServer:
    """A server, ready to be started."""
    server = LanguageServer(
        "fuscoc", fuscoc.__version__, text_document_sync_kind=lsp.TextDocumentSyncKind.Full
    )

    def opened(uri: str) -> OpenText:
        return OpenText(server.workspace.get_text_document(uri), server)

    def publish(
        params: lsp.DidOpenTextDocumentParams
        | lsp.DidChangeTextDocumentParams
        | lsp.DidSaveTextDocumentParams,
    ) -> None:
        _publish(server, opened(params.text_document.uri))

    for event in SHOWS_DIAGNOSTICS:
        server.feature(event)(publish)

    @server.feature(lsp.TEXT_DOCUMENT_DID_CLOSE)
    def did_close(params: lsp.DidCloseTextDocumentParams) -> None:
        server.text_document_publish_diagnostics(
            lsp.PublishDiagnosticsParams(params.text_document.uri, [])
        )

    @server.feature(lsp.TEXT_DOCUMENT_HOVER)
    def on_hover(params: lsp.HoverParams) -> lsp.Hover | None:
        text = opened(params.text_document.uri)
        found = occurrence_at(text.source, text.offset(params.position))
        if found is None:
            return None
        content = lsp.MarkupContent(lsp.MarkupKind.Markdown, hover(text.source, found))
        return lsp.Hover(content, text.positions.range(found.span))

    @server.feature(lsp.TEXT_DOCUMENT_DEFINITION)
    def on_definition(params: lsp.DefinitionParams) -> lsp.Location | None:
        text = opened(params.text_document.uri)
        found = occurrence_at(text.source, text.offset(params.position))
        if found is None or found.declaration is None:
            return None
        return text.location(found.declaration)

    @server.feature(lsp.TEXT_DOCUMENT_FORMATTING)
    def on_formatting(params: lsp.DocumentFormattingParams) -> list[lsp.TextEdit] | None:
        text = opened(params.text_document.uri)
        try:
            formatted = format_text(text.source)
        except CompileError:
            return None  # its errors are shown already
        if formatted == text.source.text:
            return []
        everything = text.positions.range(Span(0, len(text.source.text)))
        return [lsp.TextEdit(everything, formatted)]

    @server.feature(
        lsp.TEXT_DOCUMENT_CODE_ACTION,
        lsp.CodeActionOptions(code_action_kinds=[lsp.CodeActionKind.QuickFix]),
    )
    def on_code_action(params: lsp.CodeActionParams) -> list[lsp.CodeAction]:
        text = opened(params.text_document.uri)
        span = text.positions.span(params.range)
        return [
            _action(each, text)
            for each in text.diagnostics()
            if each.fix
            and each.primary.span.start <= span.end
            and span.start <= each.primary.span.end
        ]

    return server


def _publish(server: LanguageServer, text: OpenText) -> None:
    found = [_diagnostic(each, text) for each in text.diagnostics()]
    server.text_document_publish_diagnostics(
        lsp.PublishDiagnosticsParams(text.uri, found, text.version)
    )


def _diagnostic(found: Diagnostic, text: OpenText) -> lsp.Diagnostic:
    def related(label: Label) -> lsp.DiagnosticRelatedInformation:
        return lsp.DiagnosticRelatedInformation(text.location(label.span), label.text)

    details = [found.primary.text, *(f"note: {note}" for note in found.notes)]
    if found.help is not None:
        details.append(f"help: {found.help}")
    return lsp.Diagnostic(
        range=text.positions.range(found.primary.span),
        message="\n".join(line for line in [found.message, *details] if line),
        severity=SEVERITIES[found.severity],
        code=found.code,
        source="fuscoc",
        tags=[lsp.DiagnosticTag.Unnecessary] if found.code == UNUSED else None,
        related_information=[related(label) for label in found.secondary] or None,
    )


def _action(found: Diagnostic, text: OpenText) -> lsp.CodeAction:
    assert found.fix is not None
    edit = lsp.TextEdit(text.positions.range(found.fix.span), found.fix.replacement)
    return lsp.CodeAction(
        title=found.fix.title,
        kind=lsp.CodeActionKind.QuickFix,
        diagnostics=[_diagnostic(found, text)],
        is_preferred=found.fix.safe,
        edit=lsp.WorkspaceEdit(changes={text.uri: [edit]}),
    )
