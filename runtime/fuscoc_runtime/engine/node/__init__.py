"""Calls whose kernels plan by themselves: CUDA's or Triton's inside a node, Triton's along rails.

They have a fixed capacity, or exact sizes in windows that grow.
"""
