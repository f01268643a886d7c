"""Load the kernel modules of an artifact and launch their kernels by argument name.

The same Triton source runs natively on CUDA devices and, on the CPU, under Triton's interpreter.
Every argument is an integer: counts and indices are passed as they are, tensors as addresses.
"""

from __future__ import annotations

import hashlib
import linecache
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import RLock
from types import ModuleType
from typing import TYPE_CHECKING, Any

from fuscoc_runtime.kernels import device
from fuscoc_runtime.kernels.binaries import Binary
from fuscoc_runtime.kernels.interpreter import interpreting
from fuscoc_runtime.kernels.own import OWN
from fuscoc_runtime.manifest.schema import KernelArg, KernelSpec
from fuscoc_runtime.room import LEAST

if TYPE_CHECKING:
    from torch import Tensor

    from fuscoc_runtime.kernels.machine_code import MachineCode

TRITON_HINT = (
    "running an artifact's kernels needs triton >= 3.6; install it with 'pip install triton' "
    "(it also runs them on machines without a GPU)"
)


PLACEHOLDER_ADDRESS = 1 << 40

_log = logging.getLogger("fuscoc.runtime")


class KernelError(RuntimeError):
    """A kernel could not be loaded, or its arguments do not match its manifest entry."""


@dataclass(frozen=True, eq=False)
class Kernel:
    """A kernel of an artifact, ready to launch.

    Its parameters are those of ``spec``, in that order: int64, and not specialised by value, so
    there is one machine code for each device. For GPUs that ``binaries`` names, such as ``sm_90``,
    it has been compiled.
    """

    spec: KernelSpec
    function: Any
    interpreted: bool
    binaries: Mapping[str, Binary] = field(default_factory=dict)
    _codes: dict[int, MachineCode] = field(default_factory=dict)  # by device

    def launch(self, values: Mapping[str, int], num_programs: int) -> None:
        """Launch on a grid of ``(num_programs,)``, on the current stream of the current device.

        ``values`` has, by value name (``docs/abi.md``), at least what the kernel takes. Addresses
        are of memory that lives until the kernel has run.

        Raises:
            KernelError: the kernel takes something that ``values`` lacks.
        """
        self.start(self.arguments(values), num_programs)

    def arguments(self, values: Mapping[str, int]) -> list[int]:
        """What ``start`` takes, for ``values`` by value name.

        Raises:
            KernelError: the kernel takes something that ``values`` lacks.
        """
        missing = [arg.value for arg in self.spec.args if arg.value not in values]
        if missing:
            raise KernelError(f"kernel {self.spec.name}: no value for {', '.join(missing)}")
        return [values[arg.value] for arg in self.spec.args]

    def start(self, arguments: Sequence[int], num_programs: int) -> None:
        """Launch with one argument for each of ``spec.args``.

        The machine code is launched as it is, by the driver: Triton takes several times as long.
        """
        if self.interpreted:
            with launching(interpreted=True):
                self.function[(num_programs,)](*arguments, num_warps=self.spec.num_warps)
            return
        self.machine_code().start(arguments, num_programs)

    def compile(self) -> None:
        """Load, compiled, for the current device: then even the first launch can be captured."""
        if not self.interpreted:
            self.machine_code()

    @property
    def resident(self) -> int:
        """Programs that an SM of the current device holds at once; interpreted there is one."""
        return 1 if self.interpreted else self.machine_code().resident

    def machine_code(self) -> MachineCode:
        """For the current device, loaded."""
        import torch

        from fuscoc_runtime.kernels.machine_code import MachineCode

        device = torch.cuda.current_device()
        code = self._codes.get(device)
        if code is None:
            code = self._stored() or MachineCode.compiled(self.compiled(), len(self.spec.args))
            self._codes[device] = code
        return code

    def compiled(self, capability: int | None = None) -> Any:
        """What Triton makes of it, for the current device or one of such a ``capability``."""
        from fuscoc_runtime.kernels.triton_driver import compiling

        unused = [0] * len(self.spec.args)
        with launching(interpreted=False), compiling(capability):
            return self.function.warmup(*unused, grid=(1,), num_warps=self.spec.num_warps)

    def _stored(self) -> MachineCode | None:
        """What need not be compiled, unless the driver refuses it, as one may that is older than
        the assembler."""
        import torch

        from fuscoc_runtime.kernels.machine_code import MachineCode

        arch = "sm_{}{}".format(*torch.cuda.get_device_capability()) if self.binaries else ""
        if arch not in self.binaries:
            return None
        try:
            return MachineCode(self.binaries[arch], len(self.spec.args))
        except RuntimeError as error:
            _log.warning("%s is compiled anew for %s: %s", self.spec.name, arch, error)
            return None


def load_kernel(
    path: Path,
    spec: KernelSpec,
    code: bytes,
    *,
    interpreted: bool,
    room: int = LEAST,
    num_ranks: int = 1,
    binaries: Mapping[str, Binary] | None = None,
) -> Kernel:
    """Load a kernel from its module, whose text is ``code``; the file ``path`` is not read. It has
    ``room`` for so many ranks of a node, and is for ``num_ranks`` of all nodes. ``binaries`` are
    those of this very text, room and number of ranks.

    Every text is executed once for each mode and these numbers: compiling into the same directory
    again makes new modules, and kernels of the old ones stay what they were.

    Raises:
        KernelError: Triton is missing, or the text has no such function, or one that takes
            something else.
    """
    module = _load_module(path.resolve(), code, interpreted, room, num_ranks)
    function = getattr(module, spec.function, None)
    if function is None:
        raise KernelError(f"{path} has no kernel {spec.function}")
    if function.arg_names != [arg.name for arg in spec.args]:
        raise KernelError(f"{path}: {spec.function} takes {', '.join(function.arg_names)}")
    return Kernel(spec, function, interpreted, binaries or {})


@cache
def device_module(name: str, *, interpreted: bool, room: int = LEAST) -> ModuleType:
    """A module of ``fuscoc_runtime.kernels.device``, with room for so many ranks of a node."""
    with _in_mode(interpreted), device.having_room(room):
        return device.load(name)


def load_device_kernel(
    module: str,
    name: str,
    arguments: Sequence[str],
    *,
    interpreted: bool,
    room: int = LEAST,
    binaries: Mapping[str, Binary] | None = None,
) -> Kernel:
    """A kernel of ``fuscoc_runtime.kernels.device``, one of `OWN`."""
    function = getattr(device_module(module, interpreted=interpreted, room=room), name)
    args = tuple(KernelArg(argument, "address", argument) for argument in arguments)
    spec = KernelSpec(name, "", name, args, OWN[module, name], ())
    return Kernel(spec, function, interpreted, binaries or {})


@cache
def _load_module(
    path: Path, code: bytes, interpreted: bool, room: int, num_ranks: int
) -> ModuleType:
    """Execute the text of a kernel file.

    Triton reads the source through ``inspect``, some of it only when a kernel is first launched.
    It gets the executed text even then, under a file name of its own, whatever is in the file.
    """
    text, short = code.decode(), hashlib.sha256(code).hexdigest()[:16]
    file = str(path.with_name(f"{path.stem}@{short}.py"))
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    mode = f"{'interpreted' if interpreted else 'native'}_{room}_{num_ranks}"
    name = f"fuscoc_runtime.kernels.loaded_{abs(hash(path)):x}_{short}_{mode}.{path.stem}"
    module = ModuleType(name)
    module.__file__ = file
    sys.modules[name] = module
    with _in_mode(interpreted), device.having_room(room, num_ranks):
        exec(compile(text, file, "exec"), vars(module))
        device.fix_keys(module)
    return module


@contextmanager
def launching(interpreted: bool) -> Iterator[None]:
    """What a launch needs around it: Triton's mode, and what is replaced in its interpreter."""
    with _in_mode(interpreted), interpreting() if interpreted else nullcontext():
        yield


_one_thread = RLock()


@contextmanager
def _in_mode(interpreted: bool) -> Iterator[None]:
    """Choose Triton's mode for the enclosed code, whatever TRITON_INTERPRET says.

    The knob is read when ``@triton.jit`` is applied and by some helpers during a run, so it is
    set around both; the process's own setting is restored afterwards. It is one for all threads,
    and so is the interpreter's state: one thread at a time. A scope of Triton's own restores all
    knobs and reads all their variables, at every launch.
    """
    runtime = _import_triton().knobs.runtime
    with _one_thread:
        if runtime.interpret == interpreted:
            yield
            return
        before = vars(runtime).get("interpret")  # None: the environment says it
        vars(runtime)["interpret"] = interpreted
        try:
            yield
        finally:
            del runtime.interpret
            if before is not None:
                vars(runtime)["interpret"] = before


def _import_triton() -> Any:
    try:
        import triton
    except ImportError as error:
        raise KernelError(TRITON_HINT) from error
    return triton


def address(tensor: Tensor) -> int:
    """Address of a tensor's first element; a non-null placeholder if the tensor is empty.

    Kernels never dereference addresses of empty tensors, but the interpreter takes a small integer
    for 32 bits wide, which is no pointer.
    """
    return tensor.data_ptr() or PLACEHOLDER_ADDRESS
