"""Every option, key, class, variable and command that a message of pykcl names is there, where the message names it."""

import contextlib
import dataclasses
import inspect
import re
import tomllib

import click
import pytest
from botocore import configprovider, credentials, utils
from botocore.loaders import Loader
from messages import (
    AS_OTHERS,
    COMMANDS,
    ROOT,
    UNKNOWN,
    all_texts,
    aws_takes,
    commands_about,
    has,
    options_named,
)

import pykcl
from pykcl import errors, events, testing
from pykcl.cli.settings import from_arguments
from pykcl.compat.properties import KEYS
from pykcl.compat.properties.credentials import KNOWN as CREDENTIALS_PROVIDERS
from pykcl.config import Config

ALL_TEXTS = all_texts()
TEXTS = [
    (module, text)
    for module, text in ALL_TEXTS
    if " " in text and "<" not in text[:2] and not module.startswith(AS_OTHERS)
]
READ = {text for _, text in ALL_TEXTS if " " not in text}
"""Names that pykcl reads, among others."""
FIELDS = {field.name for field in dataclasses.fields(Config)}

OF_OTHER_PROGRAMS = {"--mode": "KclMigrationTool.py", "--profile": "aws sso login", "-m": "python -m"}


def missing_options(module, text):
    for option, program, commands in options_named(text, commands_about(module)):
        if OF_OTHER_PROGRAMS.get(option, UNKNOWN) in text:
            continue
        takes = aws_takes if program == "aws" else has
        if not any(takes(command, option) for command in commands):
            yield option


@pytest.mark.parametrize(
    "text",
    [
        "Do: --stram NAME.",
        "`pykcl leases list --shift-by 1` shows it",
        "aws kinesis list-streams --stream-name x",
    ],
)
def test_an_option_that_does_not_exist_is_missing(text):
    assert list(missing_options("pykcl.config", text)) != []


def test_every_option_that_a_message_names_is_one_of_the_command_it_is_about():
    found = {(module, option): text for module, text in TEXTS for option in missing_options(module, text)}
    assert found == {}


# -- values ----------------------------------------------------------------------------------------------------

VALUE = re.compile(r"(?<![\w.\-{/?&])([a-z_]+)=('[\w:/.-]+'|\"[\w:/.-]+\"|[\w:/.-]*\w)")
OF_PYTHON = {"None", "keep"}


def values_named():
    for _, text in TEXTS:
        for name, found in VALUE.findall(text):
            value = found.strip("'\"")
            if name in FIELDS and not value.isupper() and value not in OF_PYTHON:
                yield name, value.replace("BUCKET/PREFIX", "bucket/prefix")


@pytest.mark.parametrize(("name", "value"), sorted(set(values_named())))
def test_every_value_of_an_option_that_a_message_names_is_accepted(name, value):
    given = {"application": "orders-app", "stream": "orders", **from_arguments([f"{name}={value}"])}
    if name in ("max_attempts", "max_record_age"):
        given["dead_letters"] = "discard"
    if name == "fanout_transport":
        given["retrieval"] = "fanout"
    Config.from_options(given)


def choices_named():
    """Yield (option, the word behind it, its choices with any command that the message is about)."""
    for module, text in TEXTS:
        for option, word in re.findall(r"(--[a-z-]+) ([A-Za-z0-9]+)", text):
            params = [param for each in commands_about(module) for param in COMMANDS[each].params]
            kinds = [param.type for param in params if option in param.opts]
            choices = {one for kind in kinds if isinstance(kind, click.Choice) for one in kind.choices}
            if choices:
                yield option, word, choices


def test_every_choice_that_a_message_names_is_one():
    found = {(option, word) for option, word, choices in choices_named() if word not in choices}
    assert found == {("--output", "both"), ("--log-format", "and")}, "words of a sentence"
    assert ("--on-bad", "skip") in {(option, word) for option, word, _ in choices_named()}


# -- names -----------------------------------------------------------------------------------------------------


def named(pattern):
    """Return name -> a text that names it."""
    return {name: text for _, text in TEXTS for name in re.findall(pattern, text)}


def names_of_python():
    """Yield the fields and parameters that users of pykcl write."""
    yield from FIELDS
    public = [getattr(room, name) for room in (pykcl, testing) for name in room.__all__]
    for each in [*public, pykcl.App.stream]:
        with contextlib.suppress(TypeError, ValueError):  # no function, or a plain exception
            yield from inspect.signature(each).parameters


OF_OTHERS = {
    "alter_sys": "runpy", "aws_request_id": "repr() of the context of Lambda", "daemon": "threads", "endpoint": "credentials providers of MultiLangDaemon",
    "endpoint_url": "clients of boto3", "run_name": "runpy", "tzinfo": "datetime", "verify": "clients of boto3",
}  # fmt: skip


def test_every_name_with_a_value_is_an_option_or_a_parameter():
    found = named(r"(?<![\w.\-{/?&%<;])([a-z_][a-z0-9_]+)=(?!%|=)").keys()
    assert found - set(names_of_python()) == OF_OTHERS.keys()


def test_every_key_in_mixed_case_is_one_that_is_read():
    found = named(r"(?<![\w:.\\])[a-z]+(?:[A-Z][a-z0-9]+)+\b").keys()
    assert found - KEYS.keys() - READ == set()


SERVICES = ("kinesis", "dynamodb", "cloudwatch", "kms", "sqs", "sts", "iam", "lambda")
OF_NOBODY = {"KclMigrationTool", "MultiLangDaemon", "SignedHeaders", "TypedDict"}


def names_of_aws():
    """Yield names of operations, shapes and their members, of the services that messages speak of."""
    for service in SERVICES:
        model = Loader().load_service_model(service, "service-2")
        yield from model["operations"]
        for name, shape in model["shapes"].items():
            yield from (name, *shape.get("members", ()))


def test_every_class_or_operation_exists():
    known = {*dir(pykcl), *dir(errors), *dir(events), *dir(testing), *names_of_aws(), *CREDENTIALS_PROVIDERS}
    found = named(r"(?<![\w.])(?:[A-Z]+[a-z0-9]+){2,}\b(?!\()").keys() - known
    assert found - READ == OF_NOBODY


VARIABLES_OF_OTHERS = {"AWS_XRAY_CONTEXT_MISSING", "HTTPS_PROXY", "HTTP_PROXY"}


def test_every_variable_of_the_environment_is_read_by_pykcl_or_boto3():
    sources = "".join(inspect.getsource(each) for each in (configprovider, credentials, utils))
    known = {*READ, *re.findall(r"'([A-Z_]+)'", sources), *(f"PYKCL_{name.upper()}" for name in FIELDS)}
    found = named(r"\b(?:AWS|PYKCL|HTTPS?|NO)_[A-Z_]*[A-Z]\b").keys()
    assert found - known == VARIABLES_OF_OTHERS


def test_every_extra_to_install_exists():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    found = named(r"pykcl\[([\w]+)\]").keys()
    assert {"local", "kclpy"} <= found <= project["project"]["optional-dependencies"].keys()
