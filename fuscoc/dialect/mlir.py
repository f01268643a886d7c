"""The one place that imports the MLIR Python bindings.

The bindings come from the ``torch-mlir`` wheel, the only one on PyPI whose upstream MLIR can
define a new dialect from Python; it brings no torch along.
"""

from typing import Any

try:
    from torch_mlir import ir
    from torch_mlir._mlir_libs._mlir import globals as bindings
    from torch_mlir.dialects import arith, ext
    from torch_mlir.passmanager import PassManager
except ImportError as error:
    raise ImportError(
        "compiling needs the MLIR bindings: pip install 'torch-mlir==20261001' "
        "(artifacts that are compiled already run without them)"
    ) from error

# Where the bindings look for the Python half of a dialect: they import ``fuscoc.dialect.fsc`` once.
# Without a place to find it they would search again at every access to an operation.
bindings.append_dialect_search_prefix("fuscoc.dialect")

__all__ = ["arith", "ext", "ir", "run_upstream"]


def run_upstream(names: str, module: Any) -> None:
    """Run passes of MLIR's own. What they leave is verified as what any other pass leaves."""
    passes = PassManager.parse(f"builtin.module({names})")
    passes.enable_verifier(False)
    passes.run(module.operation)
