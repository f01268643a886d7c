"""The dialect class; ``torch_mlir`` imports this module by its name, which is the dialect's."""

from fuscoc.dialect.mlir import ext


class Fsc(ext.Dialect, name="fsc"):
    """Declarations (L0), hops (L1), descriptors (L2) and kernels (L3) of a data shuffle."""
