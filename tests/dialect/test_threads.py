"""What one thread keeps in mind while it verifies a module is nothing to another's."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from fuscoc.dialect import attrs
from fuscoc.dialect.mlir import ir


def test_symbols_of_a_module_that_changes_while_another_is_verified() -> None:
    begun, ended = threading.Event(), threading.Event()

    def takes_long() -> None:
        begun.set()
        ended.wait(60)

    other = SimpleNamespace(operation=SimpleNamespace(verify=takes_long))
    thread = threading.Thread(target=attrs.verify, args=(other,))
    thread.start()
    begun.wait(60)
    try:
        with ir.Context() as context, ir.Location.unknown():
            context.allow_unregistered_dialects = True
            module = ir.Module.create()
            assert attrs.defined(module.operation, "late") is None
            with ir.InsertionPoint(module.body):
                name = {"sym_name": ir.StringAttr.get("late")}
                made = ir.Operation.create("test.symbol", attributes=name)
            assert attrs.defined(module.operation, "late") == made
    finally:
        ended.set()
        thread.join()
