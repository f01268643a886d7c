"""Passes over the fsc dialect: one file each, ``run(module)`` rewrites the module in place.

A pass is a plain function, not an MLIR ``Pass``: exceptions then travel as they are, with no C++
frame between that would turn them into text, and ``pipeline.py`` stays the one list that says what
runs when. No pass imports another; each expects a current MLIR context and a verified module, and
leaves a module that verifies.
"""
