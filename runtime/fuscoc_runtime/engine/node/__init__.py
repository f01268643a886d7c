"""Inside one node, calls of a fixed capacity: kernels plan by themselves, CUDA's or Triton's."""
