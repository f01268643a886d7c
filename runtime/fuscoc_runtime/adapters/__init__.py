"""Adapters for training and serving frameworks: their interfaces around an opened ``Shuffle``.

They import their framework when they are used, not before, and check that its interface is the one
they were written for.
"""
