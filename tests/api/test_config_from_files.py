"""Config from files and the environment: what is read, which source wins, and what is refused with file and key."""

import os
import subprocess
import sys
from datetime import UTC, datetime

import click
import pytest

from pykcl import Config, ConfigError
from pykcl.aws.credentials import ClientSpec, CredentialsSource, specs_of, tables_of
from pykcl.cli.settings import settings_of
from pykcl.compat.properties import load
from pykcl.config import read_toml

LEAST = 'application = "orders-app"\nstream = "orders"\n'


@pytest.fixture
def toml(tmp_path):
    def write(text, name="pykcl.toml"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PYKCL_")]:
        monkeypatch.delenv(name)


# -- one source each -------------------------------------------------------------------------------------------


def test_toml_says_options_in_their_own_types(toml):
    path = toml(
        LEAST
        + 'initial_position = 2026-11-20T09:00:00Z\nfailover_time = 3\nmax_leases = 7\ncreate_table = false\non_error = "skip"\n'
    )
    expected = Config(
        application="orders-app", stream="orders", initial_position=datetime(2026, 11, 20, 9, tzinfo=UTC), failover_time=3,
        max_leases=7, create_table=False, on_error="skip",
    )  # fmt: skip
    assert Config.from_toml(path) == Config.from_toml(str(path)) == expected


def test_the_environment_says_options_as_texts(monkeypatch):
    variables = {
        "PYKCL_APPLICATION": "orders-app",
        "PYKCL_STREAM": "orders",
        "PYKCL_FAILOVER_TIME": "3",
        "HOME": "/",
    }
    assert Config.from_env(variables) == Config(application="orders-app", stream="orders", failover_time=3.0)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert Config.from_env() == Config.from_env(variables)


def test_properties_say_options_under_the_names_of_java(toml):
    path = toml("applicationName=orders-app\nstreamName=orders\nfailoverTimeMillis=3000\n", "app.properties")
    assert load(path) == Config(
        application="orders-app",
        stream="orders",
        failover_time=3.0,
        max_leases=1_000_000,
        metrics="cloudwatch",
        metrics_level="DETAILED",
        metrics_buffer_time=10.0,
        retrieval="fanout-or-polling",
    )


def test_what_a_file_of_java_says_in_vain_or_is_billed_for_is_logged_where_no_table_is_shown(toml, caplog):
    caplog.set_level("INFO")
    text = "applicationName=orders-app\nstreamName=orders\nretrievalMode=FANOUT\nmaxRecord=CANARY\n"
    load(toml(text, "app.properties"))
    assert "app.properties: maxRecord: has no effect, in Java either. Did you mean maxRecords?" in caplog.text
    assert "enhanced fan-out, as Java reads it (retrievalMode=FANOUT)" in caplog.text
    assert "CANARY" not in caplog.text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LEAST + "failover = 3\n", "pykcl.toml: 'failover' names no option. Did you mean 'failover_time'?"),
        (LEAST + "[klients.kinesis]\n", "pykcl.toml: 'klients' names no table. Its only table is [clients]"),
        (LEAST + "clients = 1\n", "pykcl.toml: clients is a table"),
        (LEAST + "max_leases = 0\n", "pykcl.toml: max_leases is out of range"),
        (LEAST + 'max_leases = "7"\n', "pykcl.toml: max_leases takes a whole number, not '7'"),
        (LEAST + 'create_table = "false"\n', "pykcl.toml: create_table is True or False, not str"),
        (LEAST + "initial_position = 2026-11-20\n", "pykcl.toml: initial_position="),
        (LEAST + "initial_position = 2026-11-20T09:00:00\n", "has no time zone"),
        (LEAST + "checkpoint_interval = 3\n", "pykcl.toml: checkpoint_interval=3 has no meaning"),
        (LEAST + 'on_error = ["retry"]\n', "pykcl.toml: on_error="),
        (
            'application = "orders-app"\n',
            'pykcl.toml: stream is missing. Write a line such as stream = "orders"',
        ),
        ("application = orders-app\n", "pykcl.toml is not valid TOML: Invalid value (at line 1"),
        (LEAST + LEAST, "pykcl.toml is not valid TOML"),
        (b"application = '\xff'", "pykcl.toml, line 1: TOML is UTF-8"),
        (b"x" * (1024 * 1024 + 1), "larger than 1 MiB"),
        ("a = " + "[" * 5000, "pykcl.toml is not valid TOML"),
        (
            LEAST + f"failover_time = {'9' * 5000}\n",
            "pykcl.toml is not valid TOML: a number in it has too many digits",
        ),
        (LEAST + f"failover_time = {'9' * 4000}\n", "pykcl.toml: failover_time"),
        (LEAST + f"max_leases = {'9' * 4000}\n", "pykcl.toml: max_leases"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_file_and_key(toml, text, told):
    with pytest.raises(ConfigError) as caught:
        Config.from_toml(toml(text))
    assert told in str(caught.value)


def test_a_region_that_contradicts_the_arn_is_told_with_the_file(toml):
    text = 'application = "orders-app"\nstream = "arn:aws:kinesis:eu-west-1:123456789012:stream/orders"\nregion = "us-east-1"\n'
    with pytest.raises(ConfigError, match=r"pykcl\.toml: region='us-east-1' contradicts the stream ARN"):
        Config.from_toml(toml(text))


def test_a_file_that_is_not_there_or_is_a_folder_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"missing\.toml' cannot be read: No such file"):
        Config.from_toml(tmp_path / "missing.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Config.from_toml(tmp_path)


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"PYKCL_APPLICATION": "orders-app"}, "no PYKCL_STREAM"),
        ({"PYKCL_FAILOVER": "3"}, "PYKCL_FAILOVER names no option. Did you mean PYKCL_FAILOVER_TIME?"),
        (
            {"PYKCL_APPLICATION": "orders-app", "PYKCL_STREAM": "s", "PYKCL_MAX_LEASES": "many"},
            "PYKCL_MAX_LEASES takes a whole number (default: 1000), not 'many'.",
        ),
    ],
)
def test_what_is_wrong_in_the_environment_is_told_with_the_variable(variables, told):
    with pytest.raises(ConfigError) as caught:
        Config.from_env(variables)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "line", ["kinesisEndpoint=https://kinesis.example", "kinesisClient.region=us-east-1",
             "AwsCredentialsProvider=EnvironmentVariableCredentialsProvider"]
)  # fmt: skip
def test_a_config_drops_nothing_of_a_file_unseen(toml, line):
    properties = "applicationName=orders-app\nstreamName=orders\nregionName=eu-west-1\n"
    assert load(toml(properties, "a.properties")).region == "eu-west-1"
    with pytest.raises(
        ConfigError, match=r"a\.properties sets an endpoint, credentials or a region.*Config does not hold"
    ):
        load(toml(properties + line, "a.properties"))
    with pytest.raises(ConfigError, match="a Config holds none"):
        Config.from_toml(toml(LEAST + '[clients.kinesis]\nendpoint = "https://kinesis.example"\n'))


def test_reading_the_environment_needs_no_library_of_files():
    program = "import sys\nfrom pykcl import Config\nConfig.from_env({'PYKCL_APPLICATION': 'abc', 'PYKCL_STREAM': 's'})\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert not {"tomllib", "javaproperties", "boto3", "pykcl.compat.properties"} & set(done.stdout.split())


# -- tables of clients -----------------------------------------------------------------------------------------

ROLE = CredentialsSource(
    kind="assume role", role_arn="arn:aws:iam::123456789012:role/r", session_name="s", external_id="secret",
    sts_endpoint="https://sts.example", sts_region="eu-west-1",
)  # fmt: skip
SPECS = {
    "kinesis": ClientSpec(region="eu-west-1", endpoint="https://kinesis.example", credentials=(ROLE,)),
    "dynamodb": ClientSpec(
        credentials=(CredentialsSource(kind="profile", profile="dev"), CredentialsSource(kind="web identity"))
    ),
}


def test_clients_come_back_from_their_tables_as_they_were():
    assert specs_of(tables_of(SPECS), "x.toml") == SPECS
    assert tables_of({"kinesis": ClientSpec(credentials=(CredentialsSource(kind="default"),))}) == {}


@pytest.mark.parametrize(
    ("tables", "told"),
    [
        ({"kinesys": {}}, "x.toml: clients.kinesys is nothing that is read here. Did you mean 'kinesis'?"),
        ({"kinesis": 1}, "x.toml: clients.kinesis is no table"),
        (
            {"kinesis": {"endpont": "x"}},
            "clients.kinesis.endpont is nothing that is read here. Did you mean 'endpoint'?",
        ),
        ({"kinesis": {"endpoint": "kinesis.example"}}, "clients.kinesis.endpoint is no http or https URL"),
        ({"kinesis": {"endpoint": 5}}, "clients.kinesis.endpoint is text in quotes"),
        ({"kinesis": {"region": ""}}, "clients.kinesis.region is text in quotes, and not empty"),
        ({"kinesis": {"credentials": {}}}, "clients.kinesis.credentials is a list of tables"),
        ({"kinesis": {"credentials": [{"kind": "asume role"}]}}, "Did you mean 'assume role'?"),
        ({"kinesis": {"credentials": [{"kind": "assume role", "role_arn": "a"}]}}, "and no session_name"),
        (
            {"kinesis": {"credentials": [{"kind": "environment", "profile": "secret"}]}},
            "credentials.profile has no meaning",
        ),
        ({"kinesis": {"credentials": [{}]}}, "credentials.kind is none of"),
        ({"kinesis": {"credentials": [{"kind": "default", "secret": "x"}]}}, "credentials.secret is nothing"),
    ],
)
def test_what_is_wrong_in_a_table_is_told_with_its_place_and_no_value(tables, told):
    with pytest.raises(ConfigError) as caught:
        specs_of(tables, "x.toml")
    assert told in str(caught.value)
    assert "'secret'" not in str(caught.value)


# -- together --------------------------------------------------------------------------------------------------


def together(config_file=None, properties=None, overrides=None, entry_point="native", **more):
    return settings_of(
        entry_point=entry_point,
        properties=properties,
        config_file=config_file,
        overrides=overrides or {},
        accept_polling=True,
        **more,
    )


def test_what_comes_later_wins(toml, monkeypatch):
    path = toml(LEAST + "failover_time = 3\nmax_leases = 3\nmax_records = 3\n")
    monkeypatch.setenv("PYKCL_MAX_LEASES", "4")
    monkeypatch.setenv("PYKCL_MAX_RECORDS", "4")
    config = together(path, overrides={"max_records": 5}).config
    assert (config.idle_time_between_reads, config.failover_time, config.max_leases, config.max_records) == (
        None,
        3,
        4,
        5,
    )


def test_a_program_of_kclpy_checkpoints_by_itself_unless_the_file_says_otherwise(toml):
    assert together(toml(LEAST), entry_point="kclpy").config.checkpoint_mode == "manual"
    assert together(toml(LEAST), entry_point="native").config.checkpoint_mode == "auto"
    assert (
        together(toml(LEAST + 'checkpoint_mode = "auto"\n'), entry_point="kclpy").config.checkpoint_mode
        == "auto"
    )


def test_clients_of_a_file_are_used_but_not_beside_a_local_aws_and_a_region_from_later_wins(toml):
    path = toml(LEAST + '[clients.kinesis]\nregion = "eu-west-1"\nendpoint = "https://kinesis.example"\n')
    assert together(path).specs == {
        "kinesis": ClientSpec(region="eu-west-1", endpoint="https://kinesis.example")
    }
    assert together(path, use_local=True).specs is None
    assert together(path, overrides={"region": "us-east-1"}).specs == {
        "kinesis": ClientSpec(endpoint="https://kinesis.example")
    }
    assert together(toml(LEAST)).specs is None


def test_errors_are_shown_beside_a_local_aws_unless_anything_says_otherwise(toml, tmp_path, monkeypatch):
    (tmp_path / "kcl.properties").write_text(
        "applicationName=orders-app\nstreamName=orders\nretrievalMode=POLLING\n"
        "AwsCredentialsProvider=DefaultCredentialsProvider\n"
    )
    given = {"config_file": toml(LEAST)}, {"properties": tmp_path / "kcl.properties", "entry_point": "kclpy"}
    assert [together(**one).config.show_errors for one in given] == [False, False]
    assert [together(**one, use_local=True).config.show_errors for one in given] == [True, True]
    assert not together(toml(LEAST + "show_errors = false\n"), use_local=True).config.show_errors
    assert not together(
        given[0]["config_file"], overrides={"show_errors": False}, use_local=True
    ).config.show_errors
    monkeypatch.setenv("PYKCL_SHOW_ERRORS", "0")
    assert not together(given[0]["config_file"], use_local=True).config.show_errors
    monkeypatch.setenv("PYKCL_SHOW_ERRORS", "1")
    assert together(given[0]["config_file"]).config.show_errors


def test_two_files_or_none_for_a_program_of_kclpy_are_refused(toml):
    with pytest.raises(click.UsageError, match="Use one of them"):
        together(toml(LEAST), toml("a=b", "a.properties"))
    with pytest.raises(click.UsageError, match="No properties"):
        together(entry_point="kclpy")
    with pytest.raises(click.UsageError, match="No stream"):
        together(overrides={"application": "orders-app"})


def test_a_program_of_kclpy_needs_no_file_where_application_and_stream_are_told(monkeypatch):
    monkeypatch.setenv("PYKCL_APPLICATION", "orders-app")
    with pytest.raises(click.UsageError, match="No properties"):
        together(entry_point="kclpy")
    config = together(entry_point="kclpy", overrides={"stream": "orders"}).config
    assert (config.application, config.stream, config.checkpoint_mode) == ("orders-app", "orders", "manual")


def test_what_is_missing_in_the_file_may_come_from_elsewhere_and_what_is_wrong_is_still_the_files(toml):
    path = toml("max_leases = 3\n")
    assert together(path, overrides={"application": "orders-app", "stream": "orders"}).config.max_leases == 3
    with pytest.raises(ConfigError, match=r"pykcl\.toml: max_leases"):
        together(toml(LEAST + "max_leases = 0\n"), overrides={"max_leases": 3})


def test_the_names_of_a_file_are_those_of_config(toml):
    assert read_toml(toml(LEAST)).options == {"application": "orders-app", "stream": "orders"}
