"""The syntax of java.util.Properties, and files that are none: each refused with its name and the line."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties_files import written

from pykcl.compat.properties import interpret, read_properties
from pykcl.errors import ConfigError


def read(folder, text):
    return read_properties(written(folder, text))


def test_every_form_of_the_syntax_is_read_as_java_reads_it(tmp_path):
    found = read(
        tmp_path,
        "# a comment\n! another\n\n"
        "equals=1\n  spaced  =  2  \ncolon: 3\nblank 4\n"
        "folded = a,\\\n         b\n"
        "unicode=\\u00e9\\u0020x\nlatin=\xe9\n"
        "key\\ with\\:both=5\nonly\nempty=\nback=C:\\\\x\\ty\\q\n",
    )
    assert found == {
        "equals": "1", "spaced": "2  ", "colon": "3", "blank": "4", "folded": "a,b", "unicode": "\xe9 x",
        "latin": "\xe9", "key with:both": "5", "only": "", "empty": "", "back": "C:\\x\tyq",
    }  # fmt: skip


def test_each_key_knows_the_line_it_begins_in(tmp_path):
    for end in ("\n", "\r\n", "\r"):
        found = read(tmp_path, end.join(["#", "a=1", "b=x\\", "  y\\", "  z", "", "c=\x85", "d=4"]) + end)
        assert found.lines == {"a": 2, "b": 3, "c": 7, "d": 8}
        assert found.place("c") == "app.properties, line 7"
        assert found.place("none") == "app.properties"


def test_of_a_key_set_twice_the_last_value_counts_and_the_first_line_is_known(tmp_path):
    found = read(tmp_path, "a=1\nb=2\na=3\na=4\n")
    assert (found["a"], found.lines["a"], found.repeated) == ("4", 4, {"a": 1})


def test_a_mark_of_utf_8_at_the_beginning_costs_no_key(tmp_path):
    assert read(tmp_path, b"\xef\xbb\xbfa=1\n") == {"a": "1"}


def test_a_file_that_is_not_there_a_folder_and_a_forbidden_one_are_told_apart(tmp_path):
    with pytest.raises(ConfigError, match=r"no properties file '.*none.properties'"):
        read_properties(tmp_path / "none.properties")
    with pytest.raises(ConfigError, match="is a folder"):
        read_properties(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_properties(tmp_path / "a\0b")


def test_a_file_that_may_not_be_read_is_told_so(tmp_path, monkeypatch):
    path = written(tmp_path, "a=1")

    def refuse(*_, **__):
        raise PermissionError(13, "CANARY")

    # By the exception: who runs the tests as root may read everything.
    monkeypatch.setattr(type(path), "open", refuse)
    with pytest.raises(ConfigError, match="may not be read by this user") as told:
        read_properties(path)
    assert "CANARY" not in str(told.value)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"a=1\n#\nb=\\uCAFZ CANARY\n", "line 3: .*four hexadecimal digits"),
        ("a=1".encode("utf-16"), "zero bytes"),
        (b"\x7fELF\0\0\0", "zero bytes"),
        (b"a=1\n" * 300_000, "larger than 1 MiB"),
    ],
)
def test_what_is_no_properties_file_is_refused(tmp_path, content, told):
    with pytest.raises(ConfigError, match=told) as error:
        read(tmp_path, content)
    assert "CANARY" not in str(error.value)


def test_an_endless_file_is_not_read_to_its_end():
    if not os.path.exists("/dev/zero"):
        pytest.skip("needs /dev/zero")
    with pytest.raises(ConfigError, match="larger than 1 MiB"):
        read_properties(Path("/dev/zero"))


def test_without_the_library_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "javaproperties", None)
    with pytest.raises(ConfigError, match=r"pip install 'pykcl\[kclpy\]'"):
        read(tmp_path, "a=1")


@given(st.binary(max_size=300))
def test_no_bytes_whatever_raise_anything_but_a_configuration_error(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "junk.properties"
    path.write_bytes(content)
    try:
        interpret(read_properties(path), entry_point="multilang")
    except ConfigError:
        return
    raise AssertionError("junk was taken for a configuration")
