"""What a Spark session is made of: the same code on a small machine and on a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.clients.kafka import kafka_python_config, spark_kafka_options
from infra.java.jars import JarSet
from infra.settings import Settings, load_settings
from infra.spark.session import SHORT_LIVED, _of_process, spark_conf


@pytest.fixture
def jars(tmp_path: Path) -> JarSet:
    (tmp_path / "spark").mkdir()
    for name in ("b.jar", "a.jar"):
        (tmp_path / "spark" / name).touch()
    return JarSet(tmp_path)


def cluster(**overrides: object) -> Settings:
    return load_settings(kafka_bootstrap="one.example:9092,two.example:9092", **overrides)


def test_local_session_is_tuned_for_a_small_machine(jars: JarSet, tmp_path: Path) -> None:
    conf = spark_conf(load_settings(home=tmp_path / "home", spark_driver_memory="700m"), jars)
    assert conf["spark.master"] == "local[*]"
    assert conf["spark.driver.memory"] == "700m"
    assert int(conf["spark.sql.shuffle.partitions"]) < 200
    assert conf["spark.databricks.delta.snapshotPartitions"] == "2"
    assert conf["spark.driver.bindAddress"] == "127.0.0.1"
    assert conf["spark.driver.extraClassPath"] == f"{tmp_path}/spark/a.jar:{tmp_path}/spark/b.jar"
    assert "spark.local.dir" not in conf, "each process has one of its own"
    assert "spark.jars" not in conf
    assert conf["spark.authenticate"] == "true", "every user of the machine can connect to its ports"


def test_cluster_session_ships_its_jars_and_keeps_the_clusters_tuning(jars: JarSet, tmp_path: Path) -> None:
    conf = spark_conf(load_settings(spark_master="spark://one.example:7077"), jars)
    assert conf["spark.master"] == "spark://one.example:7077"
    assert conf["spark.jars"] == f"file://{tmp_path}/spark/a.jar,file://{tmp_path}/spark/b.jar"
    local_only = {
        "spark.driver.host",
        "spark.authenticate",
        "spark.driver.extraClassPath",
        "spark.local.dir",
        "spark.sql.shuffle.partitions",
    }
    assert not local_only & conf.keys()


@pytest.mark.parametrize("is_short_lived", [True, False])
def test_session_with_little_to_do_optimizes_no_code(tmp_path: Path, is_short_lived: bool) -> None:
    conf = _of_process(tmp_path, tmp_path / "classes.jsa", is_short_lived=is_short_lived)
    options = conf["spark.driver.defaultJavaOptions"]
    assert (SHORT_LIVED in options) == is_short_lived
    assert "classes.jsa" in options


@pytest.mark.parametrize("master", ["local[*]", "spark://one.example:7077"])
def test_every_session_has_delta_and_counts_time_in_utc(jars: JarSet, master: str) -> None:
    conf = spark_conf(load_settings(spark_master=master), jars)
    assert conf["spark.sql.session.timeZone"] == "UTC"
    assert "DeltaSparkSessionExtension" in conf["spark.sql.extensions"]
    assert "DeltaCatalog" in conf["spark.sql.catalog.spark_catalog"]


def test_plaintext_needs_nothing_but_addresses() -> None:
    settings = load_settings()
    assert spark_kafka_options(settings, "127.0.0.1:9092") == {
        "kafka.bootstrap.servers": "127.0.0.1:9092",
        "kafka.security.protocol": "PLAINTEXT",
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": "10",
    }
    assert kafka_python_config(settings, "a:1,b:2") == {
        "bootstrap_servers": ["a:1", "b:2"],
        "security_protocol": "PLAINTEXT",
    }


@pytest.mark.parametrize(
    ("mechanism", "login"), [("PLAIN", "plain.PlainLoginModule"), ("SCRAM-SHA-512", "scram.ScramLoginModule")]
)
def test_spark_and_python_clients_sign_in_alike(mechanism: str, login: str) -> None:
    settings = cluster(
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanism=mechanism,
        kafka_username="ada",
        kafka_password='a"b\\c',
        kafka_ca_file="/etc/ca.pem",
    )
    options = spark_kafka_options(settings, settings.kafka_bootstrap)
    assert options["kafka.sasl.mechanism"] == mechanism
    assert options["kafka.sasl.jaas.config"] == (
        f'org.apache.kafka.common.security.{login} required username="ada" password="a\\"b\\\\c";'
    )
    assert options["kafka.ssl.truststore.location"] == "/etc/ca.pem"
    config = kafka_python_config(settings, settings.kafka_bootstrap)
    assert config["sasl_mechanism"] == mechanism
    assert (config["sasl_plain_username"], config["sasl_plain_password"]) == ("ada", 'a"b\\c')
    assert config["ssl_cafile"] == "/etc/ca.pem"


def test_ssl_without_sasl_sends_no_password() -> None:
    settings = cluster(kafka_security_protocol="SSL", kafka_username="ada", kafka_password="hunter2")
    assert "hunter2" not in str(spark_kafka_options(settings, "x:1")) + str(kafka_python_config(settings, "x:1"))


def test_log_configuration_survives_a_path_with_a_space(
    jars: JarSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark splits the options of its JVM at spaces."""
    monkeypatch.setattr("infra.spark.session._log_config", lambda: tmp_path / "my projects" / "log.properties")
    options = spark_conf(load_settings(), jars)["spark.driver.extraJavaOptions"]
    assert " " not in options
    assert options.endswith("/my%20projects/log.properties")
