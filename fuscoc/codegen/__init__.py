"""Kernels: built as L3 operations from L2 steps, and printed as Triton or CUDA text."""
