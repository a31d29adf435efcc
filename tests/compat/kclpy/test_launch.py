"""The stand-in for amazon_kclpy: there for a launched program, and for nobody else."""

import importlib
import importlib.util
import io
import json
import logging
import re
import signal
import subprocess
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path

import pytest

from pykcl.compat.kclpy import checkpointers, kcl, launch
from pykcl.compat.multilang.protocol import JavaCheckpoints
from pykcl.errors import ConfigError, SetupError
from pykcl.model.checkpoint import AT_TRIM_HORIZON
from pykcl.processor import InitializationInput

PROGRAM = """
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
class Mine(processor.RecordProcessorBase):
    def initialize(self, initialize_input): pass
    def process_records(self, process_records_input): pass
    def lease_lost(self, lease_lost_input): pass
    def shard_ended(self, shard_ended_input): pass
    def shutdown_requested(self, shutdown_requested_input): pass
"""


class FakeWorker:
    def __init__(self, processor, run=lambda self: None):
        self.processor, self._run, self.stopped = processor, run, 0

    def run(self):
        self._run(self)

    def stop(self):
        self.stopped += 1


@pytest.fixture
def started():
    """Workers that were made, each with the factory it was given."""
    return []


def launched(started, run=lambda worker: None):
    def make(factory):
        started.append(FakeWorker(factory, run))
        return started[-1]

    return launch.Launch(make)


def run(tmp_path, text, a_launch, *arguments):
    program = tmp_path / "program.py"
    program.write_text(text)
    launch.run_program(program, arguments, a_launch)


def test_the_program_finds_the_stand_in_and_nobody_after_it(tmp_path, started, monkeypatch):
    real = {name: type(sys)(name) for name in ("amazon_kclpy", "amazon_kclpy.kcl")}
    for name, module in real.items():
        monkeypatch.setitem(sys.modules, name, module)
    run(tmp_path, PROGRAM + "kcl.KCLProcess(Mine()).run()", launched(started))
    assert {name: sys.modules.get(name) for name in real} == real
    assert [name for name in sys.modules if name.startswith("amazon_kclpy")] == list(real)
    assert launch.current() is None


def test_pykcl_brings_no_amazon_kclpy_of_its_own_for_others_to_find():
    found = importlib.util.find_spec("amazon_kclpy")
    assert found is None or "pykcl" not in Path(found.origin or "").parts


def test_every_module_of_the_real_package_can_be_imported_in_every_way(tmp_path, started):
    ways = """
import amazon_kclpy, amazon_kclpy.v2.processor, amazon_kclpy.v3, amazon_kclpy.messages as m
from amazon_kclpy import kcl, messages, dispatch, checkpoint_error, v2, v3
from amazon_kclpy.kcl import KCLProcess, CheckpointError
from amazon_kclpy.v2.processor import RecordProcessorBase as R2, V1toV2Processor
from amazon_kclpy.v3.processor import RecordProcessorBase as R3, V2toV3Processor
assert amazon_kclpy.v2.processor.RecordProcessorBase is R2 and v3.processor.RecordProcessorBase is R3
assert m is messages is amazon_kclpy.kcl.messages and issubclass(CheckpointError, Exception)
for nonsense in ("nonsense", "launch", "adapter", "v3.versions"):
    try:
        __import__("amazon_kclpy." + nonsense)
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError(nonsense)
"""
    run(tmp_path, PROGRAM + ways + "kcl.KCLProcess(Mine()).run()", launched(started))
    assert len(started) == 1


def test_the_program_is_the_main_module_with_its_own_arguments_and_folder(tmp_path, started, monkeypatch):
    (tmp_path / "beside.py").write_text("HERE = True")
    before = sys.argv, list(sys.path)
    text = "import sys, beside, __main__\nassert __name__ == '__main__' and __main__.beside.HERE\n"
    text += "assert sys.argv[1:] == ['a', '-b'], sys.argv\n"
    run(tmp_path, PROGRAM + text + "kcl.KCLProcess(Mine()).run()", launched(started), "a", "-b")
    monkeypatch.delitem(sys.modules, "beside")
    assert (sys.argv, sys.path) == before


def test_a_launched_process_with_files_of_its_own_speaks_the_protocol(started):
    with launch.standing_in(launched(started)):
        amazon = importlib.import_module("amazon_kclpy.kcl")
        answers = io.StringIO()
        message = {"action": "initialize", "shardId": "s", "sequenceNumber": "1", "subSequenceNumber": 0}

        class Mine(amazon.RecordProcessorBase):
            def initialize(self, shard_id):
                self.shard_id = shard_id

            def process_records(self, records, checkpointer):
                pass

        amazon.KCLProcess(Mine(), io.StringIO(json.dumps(message)), answers, io.StringIO()).run()
    assert json.loads(answers.getvalue()) == {"action": "status", "responseFor": "initialize"}
    assert not started


@pytest.mark.parametrize(
    "opened",
    [
        "sys.stdin",
        "open(0, closefd=False)",
        "io.TextIOWrapper(os.fdopen(os.dup(0), 'rb'), encoding='utf-8')",
    ],
)
def test_the_standard_input_is_known_also_where_the_program_opens_it_again(tmp_path, opened):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM + f"import io, os, sys\nkcl.KCLProcess(Mine(), input_file={opened}).run()")
    code = f"""if True:
        from pathlib import Path
        from pykcl.compat.kclpy.launch import Launch, run_program
        class Worker:
            def run(self): print("the worker runs")
        run_program(Path({str(program)!r}), (), Launch(lambda factory: Worker()))
    """
    done = subprocess.run([sys.executable, "-c", code], input="", capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("the worker runs\n", 0), done.stderr


def test_a_program_finds_its_own_file_also_after_it_left_its_folder(tmp_path, started, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "beside.txt").write_text("here")
    text = "import os\nfrom pathlib import Path\nos.chdir('/')\nfolder = os.path.dirname(__file__)\n"
    text += "assert Path(folder, 'beside.txt').read_text() == 'here'\n"
    Path("program.py").write_text(PROGRAM + text + "kcl.KCLProcess(Mine()).run()")
    launch.run_program(Path("program.py"), (), launched(started))
    assert len(started) == 1


def test_a_program_may_ask_whether_amazon_kclpy_is_there(tmp_path, started):
    text = "from importlib.util import find_spec\n"
    text += "assert find_spec('amazon_kclpy') and find_spec('amazon_kclpy.v3') and find_spec('amazon_kclpy.v3.processor')\n"
    text += "assert not find_spec('amazon_kclpy.nonsense')\n"
    run(tmp_path, PROGRAM + text + "kcl.KCLProcess(Mine()).run()", launched(started))
    assert len(started) == 1


def test_the_processor_of_the_process_may_be_looked_at_and_replaced_before_it_runs(tmp_path, started):
    text = "p = kcl.KCLProcess(None)\np.processor = Mine()\np.processor.mark = 7\np.run()"
    run(tmp_path, PROGRAM + text, launched(started))
    assert started[0].processor()._processor.mark == 7


@pytest.mark.parametrize(
    "change",
    [
        "class Process(kcl.KCLProcess):\n    def _perform_action(self, action): pass\n",
        "Process = kcl.KCLProcess\nProcess._perform_action = lambda self, action: None\n",
    ],
)
def test_what_a_program_changes_of_the_conversation_is_told_to_be_of_no_use(
    change, tmp_path, started, caplog, monkeypatch
):
    monkeypatch.setattr(kcl.KCLProcess, "_perform_action", kcl.KCLProcess._perform_action)
    with caplog.at_level(logging.WARNING, "pykcl.kclpy"):
        run(tmp_path, PROGRAM + "kcl.KCLProcess(Mine()).run()", launched(started))
        assert not caplog.records
        run(tmp_path, PROGRAM + change + "Process(Mine()).run()", launched(started))
    assert "KCLProcess._perform_action of the program is not called" in caplog.text


def test_without_a_launch_the_standard_input_is_spoken_over(monkeypatch):
    assert launch.current() is None
    process = kcl.KCLProcess(MineV1)
    assert process.io_handler.input_file is kcl._STANDARD_INPUT
    assert isinstance(process.checkpointer, kcl.Checkpointer)
    assert not isinstance(process.checkpointer, kcl.CheckpointerOfCaller)


class MineV1(kcl.RecordProcessorBase):
    def process_records(self, records, checkpointer):
        pass


def test_the_second_run_of_a_process_reads_nothing_more(tmp_path, started, caplog):
    run(
        tmp_path,
        PROGRAM + "p = kcl.KCLProcess(Mine())\np.run()\np.run()\nkcl.KCLProcess(Mine()).run()",
        launched(started),
    )
    assert len(started) == 1


@pytest.mark.parametrize(
    "guard", ["", "try:\n    {}\nexcept Exception: pass", "try:\n    {}\nfinally: raise SystemExit"]
)
def test_what_stopped_the_worker_comes_out_also_where_the_program_passes_over_it(tmp_path, started, guard):
    def fail(worker):
        raise SetupError("no such stream")

    text = (guard or "{}").format("kcl.KCLProcess(Mine()).run()")
    with pytest.raises(SetupError, match="no such stream"):
        run(tmp_path, PROGRAM + text, launched(started, fail))


def test_a_worker_that_would_not_hear_of_its_end_is_refused(tmp_path, started, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda problem: None)
    text = "import threading\nt = threading.Thread(target=kcl.KCLProcess(Mine()).run)\nt.start()\nt.join()"
    with pytest.raises(ConfigError, match=r"call run\(\) in the main thread"):
        run(tmp_path, PROGRAM + text, launched(started))
    assert started == []


def test_a_processor_that_cannot_be_used_is_told_of_also_where_the_program_passes_over_it(tmp_path, started):
    text = "try:\n    kcl.KCLProcess(7).run()\nexcept Exception: pass"
    with pytest.raises(ConfigError, match="is not a record processor"):
        run(tmp_path, PROGRAM + text, launched(started))
    assert not started


@pytest.mark.parametrize(
    ("code", "method", "expected"),
    [
        (None, "process_records", 1),
        (0, "process_records", 1),
        (3, "process_records", 3),
        ("message", "initialize", "message"),
        (0, "shard_ended", 1),
        (4, "shutdown_requested", 4),
        (None, "shutdown_requested", None),
        (0, "shutdown_requested", None),
    ],
)
def test_sys_exit_in_a_method_stops_the_worker_and_becomes_the_exit_code(
    tmp_path, started, code, method, expected
):
    a_launch = launched(started, lambda worker: a_launch._exited("shard", method, SystemExit(code)))
    found = None
    try:
        run(
            tmp_path,
            PROGRAM + "kcl.KCLProcess(Mine()).run()\nopen(__file__ + '.after', 'w').close()",
            a_launch,
        )
    except SystemExit as error:
        found = error.code
    assert found == expected
    assert started[0].stopped == 1
    assert (tmp_path / "program.py.after").exists() == (expected is None), (
        "as after an exit in the program itself"
    )


def test_the_first_exit_code_counts_even_if_the_program_catches_it(tmp_path, started):
    def leave_twice(worker):
        a_launch._exited("one", "process_records", SystemExit(3))
        a_launch._exited("two", "process_records", SystemExit(4))

    a_launch = launched(started, leave_twice)
    with pytest.raises(SystemExit) as left:
        run(
            tmp_path, PROGRAM + "try:\n    kcl.KCLProcess(Mine()).run()\nexcept BaseException: pass", a_launch
        )
    assert left.value.code == 3


def test_a_handler_of_signals_that_the_worker_replaces_is_told_of(tmp_path, started, caplog):
    before = signal.getsignal(signal.SIGTERM)
    try:
        with caplog.at_level(logging.INFO, "pykcl.kclpy"):
            run(tmp_path, PROGRAM + "kcl.KCLProcess(Mine()).run()", launched(started))
            assert "SIGTERM" not in caplog.text
            text = (
                "import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)\nkcl.KCLProcess(Mine()).run()"
            )
            run(tmp_path, PROGRAM + text, launched(started))
            assert "SIGTERM is not called" in caplog.text
    finally:
        signal.signal(signal.SIGTERM, before)


def test_methods_nobody_wrote_are_told_of_at_the_start(tmp_path, started, caplog):
    with caplog.at_level(logging.INFO, "pykcl.kclpy"):
        run(
            tmp_path,
            PROGRAM.replace("shard_ended(", "other(") + "kcl.KCLProcess(Mine()).run()",
            launched(started),
        )
    assert "has no shard_ended: each call will fail" in caplog.text


@pytest.mark.parametrize(
    ("method", "written", "told"),
    [
        ("process_records", "proces_records", "has proces_records"),
        ("process_records", "processRecords", "has processRecords"),
        ("initialize", "initialise", "has initialise"),
        ("initialize", "other", "it has no method with a similar name"),
    ],
)
@pytest.mark.parametrize("base", ["processor.RecordProcessorBase", "object"])
def test_a_processor_that_could_do_no_batch_takes_no_lease_from_others(
    tmp_path, started, method, written, told, base
):
    text = PROGRAM.replace(f"def {method}(", f"def {written}(").replace("processor.RecordProcessorBase", base)
    with pytest.raises(ConfigError, match=f"Mine .*{method}.*{told}"):
        run(tmp_path, text + "kcl.KCLProcess(Mine()).run()", launched(started))
    assert not started


@pytest.mark.parametrize("code", ["", "0", "None", "9"])
def test_a_program_that_exits_before_it_reads_is_told_of(tmp_path, started, caplog, code):
    with pytest.raises(SystemExit) as left:
        run(tmp_path, f"import sys\nsys.exit({code})", launched(started))
    assert left.value.code == (int(code) if code.isdigit() else None)
    assert "program.py called sys.exit() before KCLProcess(...).run(): no record was read." in caplog.text


def test_an_exit_behind_the_worker_s_is_not(tmp_path, started, caplog):
    with pytest.raises(SystemExit):
        run(tmp_path, PROGRAM + "kcl.KCLProcess(Mine()).run()\nraise SystemExit(0)", launched(started))
    assert "no record was read" not in caplog.text


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("def f():\n    raise ValueError('x')\nf()", "before KCLProcess(...).run(): no record was read"),
        (PROGRAM + "kcl.KCLProcess(Mine()).run()\nraise ValueError('x')", "after KCLProcess(...).run()"),
    ],
)
def test_the_traceback_of_what_a_program_raises_begins_in_the_program(tmp_path, started, caplog, text, when):
    with pytest.raises(
        launch.ProgramRaised, match=re.escape(f"program.py raised ValueError {when}")
    ) as raised:
        run(tmp_path, text, launched(started))
    assert isinstance(raised.value.__cause__, ValueError)
    (record,) = [record for record in caplog.records if record.exc_info]
    frames = traceback.extract_tb(record.exc_info[2])
    assert {frame.filename for frame in frames} == {str(tmp_path / "program.py")}


def test_the_traceback_is_there_also_where_the_program_left_its_folder(
    tmp_path, started, caplog, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text("import os\nos.chdir('/')\nraise ValueError('x')")
    with pytest.raises(launch.ProgramRaised):
        launch.run_program(Path("program.py"), (), launched(started))
    (record,) = [record for record in caplog.records if record.exc_info]
    assert [frame.lineno for frame in traceback.extract_tb(record.exc_info[2])] == [3]


def test_a_program_that_cannot_be_compiled_has_no_traceback_of_pykcl(tmp_path, started, caplog):
    with pytest.raises(launch.ProgramRaised, match=r"program\.py raised SyntaxError"):
        run(tmp_path, "x = (", launched(started))
    (record,) = [record for record in caplog.records if record.exc_info]
    assert record.exc_info[2] is None


# -- a program that configures logging disables all loggers that are there --------------------------------------

CONFIGURES = "import logging.config\nlogging.config.dictConfig({'version': 1})\n"
BY_FILE = """
import io, logging.config
logging.config.fileConfig(io.StringIO('''
[loggers]
keys=root
[handlers]
keys=
[formatters]
keys=
[logger_root]
handlers=
'''))
"""


@pytest.fixture
def loggers():
    """Of pykcl, one of them nobody else's; and that of a library. All loggers are given back as they were."""
    own = [logging.getLogger(name) for name in ("pykcl", "pykcl.kclpy", "pykcl.worker.made-for-this-test")]
    other = logging.getLogger("pykclish")
    root = logging.getLogger()
    known = [logger for logger in root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    before = [(logger, logger.disabled) for logger in known], list(root.handlers), root.level
    yield own, other
    for logger, was in before[0]:
        logger.disabled = was
    root.handlers[:] = before[1]
    root.setLevel(before[2])


@pytest.mark.parametrize("configures", [CONFIGURES, BY_FILE])
def test_the_loggers_of_pykcl_and_no_others_work_also_where_the_program_configures_logging(
    tmp_path, started, loggers, configures
):
    own, other = loggers
    found = []

    def look(worker):
        found.extend(logger.disabled for logger in (*own, other))

    run(tmp_path, PROGRAM + configures + "kcl.KCLProcess(Mine()).run()", launched(started, look))
    assert found == [False, False, False, True]


def test_what_a_program_says_of_pykcls_logger_holds(tmp_path, started, loggers):
    (top, *_), _ = loggers
    before = top.level, list(top.handlers), top.propagate
    text = "import logging.config\nlogging.config.dictConfig({'version': 1, 'loggers': {'pykcl': "
    text += "{'level': 'ERROR', 'propagate': False, 'handlers': []}}})\n"
    try:
        top.addHandler(logging.NullHandler())
        run(tmp_path, PROGRAM + text + "kcl.KCLProcess(Mine()).run()", launched(started))
        assert (top.level, top.handlers, top.propagate, top.disabled) == (logging.ERROR, [], False, False)
    finally:
        top.setLevel(before[0])
        top.handlers[:], top.propagate = before[1:]


@pytest.mark.parametrize("way", ["pass", "raise ValueError", "raise SystemExit"])
def test_they_work_behind_each_call_of_a_program_that_configures_logging_there(
    tmp_path, started, loggers, way
):
    own, other = loggers
    found = []

    def call(worker):
        with suppress(ValueError, SystemExit):
            worker.processor().initialize(
                InitializationInput("shard", "stream", AT_TRIM_HORIZON, None, 1, Asked())
            )
        found.extend(logger.disabled for logger in (*own, other))

    configures = "import logging.config; logging.config.dictConfig({'version': 1})"
    text = PROGRAM.replace("initialize_input): pass", f"initialize_input):\n        {configures}; {way}")
    with suppress(SystemExit):
        run(tmp_path, text + "kcl.KCLProcess(Mine()).run()", launched(started, call))
    assert found == [False, False, False, True]


def test_loggers_that_are_made_later_work_too(tmp_path, started, loggers):
    _, other = loggers
    late = []

    def call(worker):
        late.append(logging.getLogger(f"pykcl.made-at-{tmp_path}"))
        processor = worker.processor()
        processor.initialize(InitializationInput("shard", "stream", AT_TRIM_HORIZON, None, 1, Asked()))

    text = PROGRAM.replace(
        "initialize_input): pass", f"initialize_input):\n        {CONFIGURES.replace(chr(10), ';')}"
    )
    run(tmp_path, text + "kcl.KCLProcess(Mine()).run()", launched(started, call))
    assert (late[0].disabled, other.disabled) == (False, True)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("raise ValueError('x')", "program.py raised"),
        ("raise SystemExit(9)", "called sys.exit() before KCLProcess"),
        ("p = kcl.KCLProcess(Mine())\np.run()\n" + CONFIGURES + "p.run()", "was called again"),
    ],
)
def test_how_a_program_ends_is_told_also_where_it_configures_logging(
    tmp_path, started, caplog, loggers, end, told
):
    with suppress(launch.ProgramRaised, SystemExit):
        run(tmp_path, PROGRAM + CONFIGURES + end, launched(started))
    assert told in caplog.text


def test_a_relative_import_of_the_program_points_to_the_file_that_makes_it_work(tmp_path, started):
    folder = tmp_path / "package"
    folder.mkdir()
    with pytest.raises(launch.ProgramRaised) as raised:
        run(folder, "from . import beside", launched(started))
    stub = 'runpy.run_module("package.program", run_name="__main__", alter_sys=True)'
    assert f"Do: put a file with `import runpy` and `{stub}` beside the folder package" in str(raised.value)


def test_a_program_that_is_not_there_is_told_of(started):
    with pytest.raises(ConfigError, match=r"no program nowhere\.py"):
        launch.run_program(Path("nowhere.py"), (), launched(started))


# -- arguments of checkpoint(), as they arrive at Java ----------------------------------------------------------


class Asked:
    def __init__(self):
        self.calls = []

    def checkpoint(self, at=None, sub_sequence_number=0):
        self.calls.append((at, sub_sequence_number))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), (None, 0)),
        ((None, 5), (None, 0)),
        (("7",), ("7", 0)),
        (("7", 3), ("7", 3)),
        ((7, 3), ("7", 3)),
        (("7", "3"), ("7", 3)),
        (("7", ""), ("7", 0)),
        (("7", 3.9), ("7", 3)),
        (("7", "three"), "IllegalArgumentException"),
        (("7", True), "IllegalArgumentException"),
        (("7", [3]), "IllegalArgumentException"),
        (("7", float("nan")), "IllegalArgumentException"),
        ((b"7",), TypeError),
    ],
)
def test_arguments_mean_what_they_mean_behind_the_protocol(arguments, expected):
    asked, checkpointer = Asked(), checkpointers.LeaseCheckpointer()
    with checkpointer.handed(asked):
        if isinstance(expected, tuple):
            checkpointer.checkpoint(*arguments)
            assert asked.calls == [expected]
            return
        with pytest.raises(kcl.CheckpointError if isinstance(expected, str) else expected) as refused:
            checkpointer.checkpoint(*arguments)
        assert not asked.calls
        assert getattr(refused.value, "value", None) == (expected if isinstance(expected, str) else None)


def test_before_the_first_batch_there_is_nothing_to_checkpoint():
    checkpointer = checkpointers.LeaseCheckpointer()
    with pytest.raises(kcl.CheckpointError) as refused:
        checkpointer.checkpoint()
    assert refused.value.value == "InvalidStateException"
    assert isinstance(checkpointer._java, JavaCheckpoints)
