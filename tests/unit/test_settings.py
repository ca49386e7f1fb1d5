"""Settings: where a value comes from, what is refused and with which words, and that no secret is ever printed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from infra.errors import SettingsError
from infra.settings import SECRETS, Settings, child_environment, load_settings, settings_rows

CLUSTER = {"TIDEMARK_KAFKA_BOOTSTRAP": "one.example:9092", "TIDEMARK_KAFKA_USERNAME": "ada"}


@pytest.fixture
def toml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty tidemark.toml that this process reads."""
    path = tmp_path / "tidemark.toml"
    path.touch()
    monkeypatch.setenv("TIDEMARK_CONFIG", str(path))
    return path


def set_all(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


def refusal(**overrides: object) -> str:
    with pytest.raises(SettingsError) as error:
        load_settings(**overrides)
    assert error.value.exit_code == 2
    return str(error.value)


# ---- where a value comes from ------------------------------------------------


def test_environment_beats_file_beats_default(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().kafka_heap_mb == 512
    toml.write_text("kafka_heap_mb = 600\nredis_max_memory_mb = 77\n")
    assert load_settings().kafka_heap_mb == 600
    monkeypatch.setenv("TIDEMARK_KAFKA_HEAP_MB", "700")
    settings = load_settings()
    assert (settings.kafka_heap_mb, settings.redis_max_memory_mb) == (700, 77)
    assert load_settings(kafka_heap_mb=800).kafka_heap_mb == 800


def test_origin_of_each_value_is_shown(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml.write_text("redis_max_memory_mb = 77\n")
    monkeypatch.setenv("TIDEMARK_KAFKA_HEAP_MB", "700")
    origins = {row.name: row.origin for row in settings_rows(load_settings())}
    assert origins["kafka_heap_mb"] == "TIDEMARK_KAFKA_HEAP_MB"
    assert origins["redis_max_memory_mb"] == "tidemark.toml"
    assert origins["redis_port"] == "default"


def test_every_setting_has_help_and_a_default() -> None:
    for row in settings_rows(load_settings()):
        assert row.help.endswith("."), row.name
    assert not [name for name, field in Settings.model_fields.items() if field.is_required()]


@pytest.mark.parametrize(
    ("name", "value"),
    [("java_home", None), ("kafka_bootstrap", ""), ("redis_url", ""), ("kafka_password", None), ("views_dir", None)],
)
def test_empty_variable_means_the_empty_value(
    toml: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    monkeypatch.setenv(f"TIDEMARK_{name.upper()}", "")
    assert getattr(load_settings(), name) == value


def test_empty_variable_overrules_the_file(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml.write_text('kafka_bootstrap = "one.example:9092"\n')
    assert load_settings().kafka_bootstrap == "one.example:9092"
    monkeypatch.setenv("TIDEMARK_KAFKA_BOOTSTRAP", "")
    assert load_settings().kafka_bootstrap == ""


def test_paths_are_absolute_and_know_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/somewhere")
    assert load_settings().home == tmp_path / ".tidemark"
    assert load_settings().jars_dir == Path("/somewhere/.cache/tidemark/jars")


# ---- what is refused ---------------------------------------------------------

PATHS = sorted(name for name, field in Settings.model_fields.items() if "Path" in str(field.annotation))


def test_every_setting_that_names_a_path_is_known_as_one() -> None:
    named = {name for name in Settings.model_fields if name.endswith(("_dir", "_file", "home"))}
    assert named <= set(PATHS)


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize(
    "address", ["s3a://bucket/master", "file:///data", "hdfs://name:8020/x", "gs:/b", "abfss://c@a/x"]
)
def test_address_of_an_object_store_is_no_path(
    name: str, address: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, toml: Path
) -> None:
    """It used to become a local folder of that name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(f"TIDEMARK_{name.upper()}", raising=False)
    scheme = address.partition(":")[0]
    with monkeypatch.context() as patch:
        patch.setenv(f"TIDEMARK_{name.upper()}", address)
        said = refusal()
    assert said.startswith(f"TIDEMARK_{name.upper()} is ")
    assert f"should be a path of this machine: addresses like {scheme}://... are not supported" in said
    for given in (address, Path(address)):
        assert f"addresses like {scheme}://... are not supported" in refusal(**{name: given})
    toml.write_text(f"{name} = '{address}'\n")
    assert f"addresses like {scheme}://... are not supported" in refusal()
    assert [path.name for path in tmp_path.iterdir()] == ["tidemark.toml"]


def test_path_with_a_colon_is_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "2026-11-18T04:00" / "s3a:" / "x"
    assert load_settings(master_dir=folder, batch_dir="a:b").master_dir == folder


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("TIDEMARK_KAFKA_PORT", "70000", ["'70000'", "less than or equal to 65535", "Port of our own broker"]),
        ("TIDEMARK_KAFKA_PORT", "x", ["'x'", "a valid integer"]),
        ("TIDEMARK_KAFKA_HEAP_MB", "1", ["'1'", "greater than or equal to 128"]),
        ("TIDEMARK_LOG_LEVEL", "loud", ["'LOUD'", "'DEBUG', 'INFO', 'WARNING' or 'ERROR'"]),
        ("TIDEMARK_SPARK_DRIVER_MEMORY", "1 GB", ["'1 GB'", "like 1g or 1500m"]),
        ("TIDEMARK_SPARK_DRIVER_MEMORY", "0g", ["'0g'", "like 1g or 1500m"]),
        ("TIDEMARK_REDIS_URL", "http://h:1", ["'http://h:1'", "redis://host:6379/0"]),
        ("TIDEMARK_KAFKA_BOOTSTRAP", "one.example", ["'one.example'", "one.example:9092"]),
        ("TIDEMARK_KAFKA_BOOTSTRAP", "a:1,,b:2", ["'a:1,,b:2'", "one.example:9092"]),
        ("TIDEMARK_SPARK_CONF", "not json", ["not JSON", '{"spark.sql.ansi.enabled": "true"}']),
        ("TIDEMARK_SPARK_CONF", "[1]", ["[1]", "a valid dictionary"]),
        ("TIDEMARK_JAVA_HOME", "~nobody-of-that-name/jdk", ["'~nobody-of-that-name/jdk'", "a user of this machine"]),
        ("TIDEMARK_START_TIMEOUT_S", "0", ["'0'", "greater than 0"]),
    ],
)
def test_wrong_variable_is_refused_with_name_value_and_what_would_be_right(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: list[str]
) -> None:
    monkeypatch.setenv(variable, value)
    said = refusal()
    for word in [variable, *words]:
        assert word in said


def test_wrong_value_in_the_file_is_refused_with_the_files_name(toml: Path) -> None:
    toml.write_text("kafka_port = 70000\nlog_max_mb = 0\n")
    said = refusal().splitlines()
    assert said[0].startswith("tidemark.toml: log_max_mb is 0; it should be greater than or equal to 1.")
    assert said[1].startswith("tidemark.toml: kafka_port is 70000; it should be less than or equal to 65535.")


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("TIDEMARK_KAFKA_PROT", "there is no setting TIDEMARK_KAFKA_PROT. Did you mean TIDEMARK_KAFKA_PORT?"),
        ("TIDEMARK_ZZZZZZ", "there is no setting TIDEMARK_ZZZZZZ. `tidemark config` lists them all."),
    ],
)
def test_misspelt_variable_is_refused_with_a_suggestion(
    monkeypatch: pytest.MonkeyPatch, variable: str, said: str
) -> None:
    monkeypatch.setenv(variable, "1")
    assert said in refusal()


def test_misspelt_name_in_the_file_is_refused_with_a_suggestion(toml: Path) -> None:
    toml.write_text("kafka_prot = 1\n")
    assert f"{toml}: there is no setting 'kafka_prot'. Did you mean kafka_port?" in refusal()


def test_file_that_is_no_toml_is_refused(toml: Path) -> None:
    toml.write_text("kafka_port: 1\n")
    assert "is not valid TOML" in refusal()
    toml.write_bytes(b"\xff\xfe")
    assert "is not valid TOML" in refusal()


def test_file_named_by_variable_must_exist(toml: Path) -> None:
    toml.unlink()
    assert refusal() == f"TIDEMARK_CONFIG is {str(toml)!r}, and there is no such file."


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"TIDEMARK_KAFKA_PORT": "7000", "TIDEMARK_REDIS_PORT": "7000"}, "kafka_port and redis_port are both 7000"),
        ({"TIDEMARK_KAFKA_SECURITY_PROTOCOL": "SSL"}, "kafka_bootstrap names no cluster"),
        ({**CLUSTER, "TIDEMARK_KAFKA_SECURITY_PROTOCOL": "SASL_SSL"}, "needs kafka_username and kafka_password"),
        ({"TIDEMARK_REDIS_PASSWORD": "hunter2"}, "redis_url names no Redis"),
    ],
)
def test_values_that_do_not_fit_together_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], said: str
) -> None:
    set_all(monkeypatch, variables)
    assert said in refusal()
    assert "hunter2" not in refusal()


OPEN = {"TIDEMARK_ACCESS_REQUIRED": "false"}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "tidemark.example", "::ffff:192.0.2.7"])
@pytest.mark.parametrize("server", ["SERVING", "COLLECTOR"])
def test_access_without_a_key_beyond_loopback_must_be_asked_for(
    monkeypatch: pytest.MonkeyPatch, server: str, host: str
) -> None:
    set_all(monkeypatch, {f"TIDEMARK_{server}_HOST": host})
    load_settings()  # with keys it may listen anywhere
    set_all(monkeypatch, OPEN)
    said = refusal()
    assert f"{server.lower()}_host is {host!r}, which other machines can reach" in said
    assert "access_open_network" in said
    monkeypatch.setenv("TIDEMARK_ACCESS_OPEN_NETWORK", "true")
    assert load_settings().access_open_network
    set_all(monkeypatch, {"TIDEMARK_ACCESS_OPEN_NETWORK": "false", f"TIDEMARK_{server}_ENABLED": "false"})
    load_settings()  # nothing listens there


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_access_without_a_key_on_loopback_is_a_choice(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    set_all(monkeypatch, {**OPEN, "TIDEMARK_SERVING_HOST": host, "TIDEMARK_COLLECTOR_HOST": host})
    assert not load_settings().access_required


# ---- secrets -----------------------------------------------------------------


def test_the_secrets_are_known() -> None:
    """Their names drive masking, files and the refusal in tidemark.toml: an empty list would disarm all three."""
    assert {"kafka_password", "redis_password"} <= set(SECRETS)


@pytest.mark.parametrize("name", SECRETS)
def test_secret_in_the_file_is_refused_without_being_repeated(toml: Path, name: str) -> None:
    toml.write_text(f'{name} = "hunter2"\n')
    said = refusal()
    assert f"{name} is a secret and does not belong in this file" in said
    assert f"TIDEMARK_{name.upper()}" in said
    assert "hunter2" not in said


def test_secret_comes_from_a_file_and_the_environment_beats_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_text("from-file\n")
    monkeypatch.setenv("TIDEMARK_KAFKA_PASSWORD_FILE", str(secret_file))
    password = load_settings().kafka_password
    assert password is not None
    assert password.get_secret_value() == "from-file"
    monkeypatch.setenv("TIDEMARK_KAFKA_PASSWORD", "from-environment")
    password = load_settings().kafka_password
    assert password is not None
    assert password.get_secret_value() == "from-environment"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "No such file or directory"), (b"", "is empty"), (b" \n", "is empty"), (b"\xff\xfe", "is not UTF-8 text")],
)
def test_secret_file_that_gives_no_secret_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, said: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("TIDEMARK_KAFKA_PASSWORD_FILE", str(path))
    assert refusal().startswith(f"kafka_password_file is {str(path)!r}, which")
    assert said in refusal()


def test_secret_file_that_is_a_folder_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_KAFKA_PASSWORD_FILE", str(tmp_path))
    assert "which cannot be read: Is a directory." in refusal()


def test_secret_is_masked_in_the_table_and_in_text(monkeypatch: pytest.MonkeyPatch) -> None:
    set_all(monkeypatch, {**CLUSTER, "TIDEMARK_KAFKA_PASSWORD": "hunter2"})
    monkeypatch.setenv("TIDEMARK_SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": "hunter2", "spark.x": "plain"}')
    settings = load_settings()
    rows = {row.name: row.value for row in settings_rows(settings)}
    assert rows["kafka_password"] == "********"
    assert "plain" in rows["spark_conf"]
    assert "hunter2" not in str(rows)
    assert "hunter2" not in f"{settings.kafka_password!s} {settings.kafka_password!r}"


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@h:6379/0",
        "redis://ada:hunter2@h",
        "redis://h:6379/0?password=hunter2",
        "http://ada:hunter2@h",
        "redis://:a/hunter2@h",
        "redis://ada:x@hunter2@h",
    ],
)
def test_password_in_an_address_is_refused_without_being_repeated(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("TIDEMARK_REDIS_URL", url)
    said = refusal()
    assert "TIDEMARK_REDIS_URL is" in said
    assert "hunter2" not in said


def test_wrong_secret_in_spark_conf_is_refused_without_being_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMARK_SPARK_CONF", '{"spark.my.secret": ["hunter2"]}')
    assert "hunter2" not in refusal()


# ---- settings on their way to a child ----------------------------------------


def test_child_sees_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: Path) -> None:
    """Whatever they come from, and in whatever folder it runs: all travel in its environment."""
    secret_file = tmp_path / "secret"
    secret_file.write_text("hunter2")
    toml.write_text(
        f'kafka_bootstrap = "a:1,b:2"\nkafka_username = "ada"\nkafka_password_file = "{secret_file}"\n'
        'kafka_security_protocol = "SASL_SSL"\nwith_examples = false\nspark_conf = {"spark.a" = "b"}\n'
    )
    monkeypatch.setenv("TIDEMARK_REDIS_PORT", "7001")
    monkeypatch.setenv("TIDEMARK_CLI_OUTPUT", "json")
    before = load_settings(home=tmp_path / "home", kafka_heap_mb=600)
    environment = child_environment(before)
    assert "TIDEMARK_CLI_OUTPUT" not in environment
    monkeypatch.chdir("/")
    for name in [name for name in os.environ if name.startswith("TIDEMARK_")]:
        monkeypatch.delenv(name)
    set_all(monkeypatch, {name: value for name, value in environment.items() if name.startswith("TIDEMARK_")})
    after = load_settings()
    assert after == before
    assert after.kafka_password == before.kafka_password
    assert json.loads(environment["TIDEMARK_SPARK_CONF"]) == {"spark.a": "b"}
