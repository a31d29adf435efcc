"""Running a program of amazon_kclpy in this process: stand-in modules, and a Worker where it calls KCLProcess.run().

Without a launch nothing of this happens: `import amazon_kclpy` finds the real package, and a KCLProcess of
pykcl.compat.kclpy speaks the MultiLang protocol. So a host can be moved, and moved back, by the command that starts it.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import logging
import os
import runpy
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pykcl import logs
from pykcl.compat.kclpy.adapter import (
    Around,
    Version,
    missing_methods,
    processor_factory,
    refuse_one_that_can_do_nothing,
)
from pykcl.errors import ConfigError, PyKclError
from pykcl.processor import ProcessorFactory
from pykcl.runtime import in_main_thread

if TYPE_CHECKING:
    from pykcl.worker.worker import Worker

log = logging.getLogger("pykcl.kclpy")

_HOME = "pykcl.compat.kclpy"
_NAME = "amazon_kclpy"
_PACKAGES = ("", ".v2", ".v3")
_MODULES = (".kcl", ".messages", ".dispatch", ".checkpoint_error", ".v2.processor", ".v3.processor")


class ProgramRaised(PyKclError):
    """The program let out an exception of its own, outside the worker. `__cause__` is it; its traceback was logged."""


class Launch:
    """One run of a program. make_worker: makes the Worker whose processors a factory makes. around: what each method of
    the program runs in.

    failure: what stopped the worker. exit_code: what a method of the processor called sys.exit() with, never 0.
    """

    def __init__(
        self, make_worker: Callable[[ProcessorFactory], Worker], around: Around = nullcontext
    ) -> None:
        self._make_worker = make_worker
        self._around = around
        self._worker: Worker | None = None
        self.failure: Exception | None = None
        self.exit_code: Any = None

    @property
    def ran(self) -> bool:
        """Whether the program came to KCLProcess.run()."""
        return self._worker is not None

    def run(self, given: Any) -> None:
        """Work with the processor that the program handed to KCLProcess until the worker is stopped.

        Raises ConfigError for a processor that cannot be used, what stopped the worker, and SystemExit after a method
        of the processor called sys.exit().
        """
        logs.enable()
        if self._worker is not None:
            # A child would find its standard input at its end.
            log.warning("KCLProcess.run() was called again after its end: nothing is run.")
            return
        try:
            _refuse_other_threads()
            with logs.heard():
                factory, sample, version = processor_factory(given, self._exited, self._around_a_call)
            refuse_one_that_can_do_nothing(sample, version)
            self._tell(sample, version)
            self._worker = self._make_worker(factory)
            self._worker.run()
        except Exception as error:
            self.failure = error
            raise
        if self.exit_code is not None:
            raise SystemExit(self.exit_code)

    @contextmanager
    def _around_a_call(self) -> Iterator[None]:
        with logs.heard(), self._around():
            yield

    def _exited(self, shard: str, method: str, error: SystemExit) -> None:
        """A child that exits takes the whole daemon with it; here the other shards are checkpointed and released."""
        is_clean_end = method == "shutdown_requested" and error.code in (None, 0)
        if not is_clean_end and self.exit_code is None:
            self.exit_code = error.code or 1
        log.error("the program called sys.exit(): the worker stops shard=%s method=%s", shard, method)
        if self._worker is not None:
            self._worker.stop()

    def _tell(self, sample: Any, version: Version) -> None:
        name = type(sample).__name__
        log.info(
            "processor=%s version=%d: one for each shard; what is global in its modules is shared by all shards",
            name,
            version,
        )
        missing = missing_methods(sample, version)
        if missing:
            log.warning("%s has no %s: each call will fail.", name, ", ".join(missing))
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler):
                log.warning(
                    "The program's own handler of %s is not called while the worker runs: the worker stops "
                    "gracefully then, and calls shutdown_requested for each shard.",
                    number.name,
                )


_current: list[Launch] = []


def current() -> Launch | None:
    """The launch that this process is, if it is one."""
    return _current[-1] if _current else None


@contextmanager
def standing_in(launch: Launch) -> Iterator[None]:
    """Let `amazon_kclpy` be pykcl.compat.kclpy, and KCLProcess.run() be a Worker's, while the block lasts."""
    before = {name: sys.modules.pop(name) for name in _real_modules()}
    sys.modules.update(stand_ins())
    _current.append(launch)
    try:
        yield
    finally:
        _current.remove(launch)
        for name in _real_modules():
            del sys.modules[name]
        sys.modules.update(before)


def run_program(program: Path, arguments: Sequence[str], launch: Launch) -> None:
    """Run the file as `python program arguments…` would, as its main module, in this process.

    Raises SystemExit and pykcl's own errors that come out of it, ProgramRaised for any other, ConfigError when it never
    came to KCLProcess.run(), and what stopped the worker also where the program passed over it.
    """
    if not program.is_file():
        raise ConfigError(
            f"There is no program {program}. Do: name the file that calls KCLProcess(...).run()."
        )
    # Absolute, as __file__ of a main module is: the program may change its folder.
    file = os.path.abspath(program)
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(program), *arguments]
    sys.path.insert(0, str(program.resolve().parent))
    try:
        with standing_in(launch), logs.heard():
            runpy.run_path(file, run_name="__main__")
    except SystemExit as error:
        if launch.failure is not None and error.code in (None, 0):
            raise launch.failure from None
        if not launch.ran and launch.failure is None:
            log.warning(
                "%s called sys.exit() before KCLProcess(...).run(): no record was read.", program.name
            )
        raise
    except Exception as error:
        if error is launch.failure or isinstance(error, PyKclError):
            raise
        raise _raised(file, error, launch) from error
    finally:
        sys.argv, sys.path[:] = argv, path
    if launch.failure is not None:
        raise launch.failure
    if launch.exit_code is not None:
        raise SystemExit(launch.exit_code)
    if not launch.ran:
        raise ConfigError(
            f"{os.fspath(program)} ended without KCLProcess(...).run() of amazon_kclpy.kcl: no record was read."
        )


def _refuse_other_threads() -> None:
    """Signals come to the main thread only: a worker that runs in another one would not hear SIGTERM, and the process
    would end in the middle of its batches, with its leases kept."""
    if not in_main_thread():
        raise ConfigError(
            "KCLProcess(...).run() is called in a thread of the program. SIGTERM would end the process without a "
            "word to a worker there: no shutdown_requested, no lease released. Do: call run() in the main thread."
        )


def _raised(file: str, error: Exception, launch: Launch) -> ProgramRaised:
    """Logs the traceback from the program's first frame on: those before it are of pykcl and of runpy."""
    program, frames = Path(file), error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != file:
        frames = frames.tb_next
    log.error("%s raised", program.name, exc_info=(type(error), error, frames))
    when = "after KCLProcess(...).run()" if launch.ran else "before KCLProcess(...).run(): no record was read"
    to_do = ""
    if isinstance(error, ImportError) and "no known parent package" in str(error):
        package = program.parent.name
        stub = f'runpy.run_module("{package}.{program.stem}", run_name="__main__", alter_sys=True)'
        to_do = (
            f" Do: put a file with `import runpy` and `{stub}` beside the folder {package}, and name that one "
            "(docs/guides/migrate-from-kclpy.md)."
        )
    return ProgramRaised(f"{program.name} raised {type(error).__name__} {when}.{to_do}")


def _real_modules() -> list[str]:
    return [name for name in sys.modules if name == _NAME or name.startswith(_NAME + ".")]


def stand_ins() -> dict[str, ModuleType]:
    """Name of a module of amazon_kclpy -> what stands in for it. Packages are new ones that hold only what those of
    amazon_kclpy hold: a name it lacks must not be found in ours."""
    found = {_NAME + name: ModuleType(_NAME + name, "amazon_kclpy, by pykcl.") for name in _PACKAGES}
    for name, package in found.items():
        package.__path__ = []
        # importlib.util.find_spec() asks it whether the package is there.
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    found |= {_NAME + name: importlib.import_module(_HOME + name) for name in _MODULES}
    for name, module in found.items():
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(found[parent], own, module)
    return found
