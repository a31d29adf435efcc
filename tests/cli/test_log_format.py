"""The text of the commands' log: one record is one line, whatever its logger is called."""

import logging

from pykcl.cli.settings import formatter


def test_a_name_of_a_logger_forges_no_line_and_drives_no_terminal():
    record = logging.makeLogRecord({"name": "app.\x1b]0;x\x07\nERROR forged", "msg": "hello", "levelno": 20})
    line = formatter("text", with_names=True).format(record)
    assert line.isprintable()
    assert r"app.\x1b]0;x\x07\nERROR forged hello" in line
    assert record.name == "app.\x1b]0;x\x07\nERROR forged", "other handlers get the record as it was"
