"""Programs that are not tested as processes: forked from the server that ranks come from.

What they import takes seconds of a processor in a process of its own, and is there already. Where
imports, the start or the end of a process are what a test is about, it starts one.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import IO, Any, NoReturn
from unittest import mock

from fuscoc_runtime.demo import launcher, worker
from tests.engine.pool import IMPORTED

_CONTEXT = multiprocessing.get_context("forkserver")
WORKER = [sys.executable, "-m", worker.__name__]


def run_program(script: Path, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """``python script arguments`` in that folder."""
    command = [str(script), *arguments]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = _fork((out, err), dict(os.environ), _be_program, command, folder)
        try:
            process.join()
        finally:
            process.kill()  # where the test's time is up
        printed = []
        for each in (out, err):
            each.seek(0)
            printed.append(each.read())
    assert process.exitcode is not None
    return subprocess.CompletedProcess(command, process.exitcode, *printed)


def _be_program(command: list[str], folder: Path) -> None:
    os.chdir(folder)
    sys.argv, sys.path = command, [str(Path(command[0]).parent), *sys.path]
    runpy.run_path(command[0], run_name="__main__")


def forking_ranks() -> AbstractContextManager[Any]:
    """The process that ``fuscoc_runtime.run`` forks its ranks from is forked itself."""
    return mock.patch.object(launcher, "subprocess", _Subprocess)


class _Worker:
    """What the launcher needs of a ``Popen`` of `WORKER`."""

    def __init__(
        self,
        command: list[str],
        *,
        env: dict[str, str],
        stdin: int,
        stdout: IO[bytes],
        stderr: int,
        pass_fds: Sequence[int],
    ) -> None:
        assert command[: len(WORKER)] == WORKER
        assert (stdin, stderr) == (subprocess.DEVNULL, subprocess.STDOUT)
        job, store_port, _, *numbers = command[len(WORKER) :]
        assert numbers == [str(each) for each in pass_fds]
        passed = [_Passed(each) for each in pass_fds]
        self._process = _fork((stdout, stdout), env, _be_worker, job, store_port, passed)

    def poll(self) -> int | None:
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()

    def wait(self) -> None:
        self._process.join()


class _Subprocess:
    """The module, for the launcher."""

    DEVNULL, STDOUT, Popen = subprocess.DEVNULL, subprocess.STDOUT, _Worker


def _be_worker(job: str, store_port: str, passed: Sequence[int]) -> None:
    # It ends with the server, as all that was forked from it.
    sys.argv = [worker.__name__, job, store_port, str(os.getppid()), *map(str, passed)]
    worker.main()


class _Passed:
    """A file of this process: in one that it is passed to, the number that it has there."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Callable[[Any], int], tuple[Any]]:
        return _number_of, (DupFd(self._number),)


def _number_of(passed: Any) -> int:
    number: int = passed.detach()
    return number


def _fork(
    outputs: tuple[IO[Any], IO[Any]],
    environment: dict[str, str],
    function: Callable[..., None],
    *arguments: Any,
) -> BaseProcess:
    _CONTEXT.set_forkserver_preload(IMPORTED)
    files = [_Passed(each.fileno()) for each in outputs]
    process = _CONTEXT.Process(target=_be, args=(files, environment, function, arguments))
    process.start()
    return process


def _be(
    files: Sequence[int],
    environment: dict[str, str],
    function: Callable[..., None],
    arguments: Sequence[Any],
) -> NoReturn:
    for number, file in enumerate(files, 1):
        os.dup2(file, number)
    os.environ.clear()
    os.environ.update(environment)
    code: Any = 0
    try:
        function(*arguments)
    except SystemExit as error:
        code = error.code
    except BaseException:
        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)
