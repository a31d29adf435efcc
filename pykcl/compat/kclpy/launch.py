"""Run a program of amazon_kclpy in this process: stand-in modules, and a Worker where it calls KCLProcess.run().

Without a launch none of this applies: `import amazon_kclpy` finds the real package, and a KCLProcess of
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
    refuse_unusable,
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
    """The program raised an exception outside the worker. `__cause__` is that exception; its traceback was logged."""


class Launch:
    """One run of a program. make_worker: creates the Worker for a factory of processors. around: context of each method
    of the program.

    failure: the error that stopped the worker. exit_code: argument of sys.exit() in a method of the processor, never 0.
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
        """True if the program has called KCLProcess.run()."""
        return self._worker is not None

    def run(self, given: Any) -> None:
        """Run a worker with the argument of KCLProcess until it is stopped.

        Raises ConfigError for a processor that cannot be used, the error that stopped the worker, and SystemExit if a
        method of the processor called sys.exit().
        """
        logs.enable()
        if self._worker is not None:
            # A child would find the end of its standard input.
            log.warning("KCLProcess.run() was called again after it returned: the second call does nothing.")
            return
        try:
            _refuse_other_threads()
            with logs.heard():
                factory, sample, version = processor_factory(given, self._exited, self._around_a_call)
            refuse_unusable(sample, version)
            self._log_start(sample, version)
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
        """Stop the worker in order; in Java a child that exits ends the daemon."""
        is_clean_end = method == "shutdown_requested" and error.code in (None, 0)
        if not is_clean_end and self.exit_code is None:
            self.exit_code = error.code or 1
        log.error("the program called sys.exit(): the worker stops shard=%s method=%s", shard, method)
        if self._worker is not None:
            self._worker.stop()

    def _log_start(self, sample: Any, version: Version) -> None:
        name = type(sample).__name__
        log.info(
            "processor=%s version=%d: one instance for each shard; all shards share the globals of its modules",
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
    """Return the launch of this process, if there is one."""
    return _current[-1] if _current else None


@contextmanager
def standing_in(launch: Launch) -> Iterator[None]:
    """Replace `amazon_kclpy` by pykcl.compat.kclpy during the block; KCLProcess.run() runs a Worker then."""
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

    Raises SystemExit and pykcl's errors that the program raises, ProgramRaised for its other exceptions, ConfigError if
    it did not call KCLProcess.run(), and the error that stopped the worker, also if the program caught it.
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
        with standing_in(launch):
            try:
                with logs.heard():
                    runpy.run_path(file, run_name="__main__")
            except Exception as error:
                if error is launch.failure or isinstance(error, PyKclError):
                    raise
                # Within the block: since Python 3.15 a traceback of an import that failed imports the package again.
                raise _raised(file, error, launch) from error
    except SystemExit as error:
        if launch.failure is not None and error.code in (None, 0):
            raise launch.failure from None
        if not launch.ran and launch.failure is None:
            log.warning(
                "%s called sys.exit() before KCLProcess(...).run(): no record was read.", program.name
            )
        raise
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
    """Raise ConfigError outside the main thread: signals are delivered only there, and SIGTERM would end the process in
    the middle of its batches, with its leases held."""
    if not in_main_thread():
        raise ConfigError(
            "KCLProcess(...).run() was called outside the main thread, where a worker does not receive SIGTERM: the "
            "process would end without shutdown_requested and without releasing leases. Do: call run() in the main "
            "thread."
        )


def _raised(file: str, error: Exception, launch: Launch) -> ProgramRaised:
    """Log the traceback from the program's first frame on, without those of pykcl and runpy before it."""
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
    """Return the stand-in of each module of amazon_kclpy, by name. The packages are new ones with only the names that
    those of amazon_kclpy have: other names of ours must not be found in them."""
    found = {_NAME + name: ModuleType(_NAME + name, "amazon_kclpy, by pykcl.") for name in _PACKAGES}
    for name, package in found.items():
        package.__path__ = []
        # For importlib.util.find_spec().
        package.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    found |= {_NAME + name: importlib.import_module(_HOME + name) for name in _MODULES}
    for name, module in found.items():
        parent, _, own = name.rpartition(".")
        if parent:
            setattr(found[parent], own, module)
    return found
