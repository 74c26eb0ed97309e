"""What `rcray submit` uploads and refuses, before anything reaches a cluster."""

import sys

import pytest

from rcray import cli
from rcray.errors import EXIT_USAGE, ConfigError, RcrayError
from rcray.sweep.submit import UPLOAD_LIMIT, Submission, check_size, connect, file_in_job, parse_env


def test_the_environment_of_a_job():
    assert parse_env(["HF_HUB_OFFLINE=1", "A=b=c"]) == {"HF_HUB_OFFLINE": "1", "A": "b=c"}


@pytest.mark.parametrize(
    "item", ["HF_TOKEN=x", "OPENAI_API_KEY=x", "DB_PASSWORD=x", "URI=http://me:pw@host", "nonsense"]
)
def test_secrets_do_not_travel(item):
    with pytest.raises(ConfigError) as caught:
        parse_env([item])
    assert "pw" not in str(caught.value), "nor do they reach the screen"


def test_what_is_too_large_is_named(tmp_path):
    (tmp_path / "small.txt").write_text("x")
    for name in ("weights", "rcray-store", ".mypy_cache"):
        (tmp_path / name).mkdir()
        with (tmp_path / name / "model.bin").open("wb") as file:
            file.truncate(UPLOAD_LIMIT + 1)  # takes no room on the disk
    with pytest.raises(ConfigError, match="weights 100 MiB") as caught:
        check_size(tmp_path)
    assert "rcray-store" not in str(caught.value), "what is not uploaded does not count"
    (tmp_path / "weights" / "model.bin").unlink()
    check_size(tmp_path)


def test_paths_as_the_job_sees_them(tmp_path):
    file = tmp_path / "experiments" / "x.yaml"
    assert file_in_job(file, tmp_path) == "experiments/x.yaml"
    with pytest.raises(ConfigError, match="outside"):
        file_in_job(tmp_path.parent / "y.yaml", tmp_path)


def test_the_same_command_has_the_same_name(tmp_path):
    one, same, other = (Submission("x", ["sweep", name], tmp_path) for name in ("a b.yaml", "a b.yaml", "c.yaml"))
    assert one.prefix == same.prefix != other.prefix
    assert one.entrypoint == "python -m rcray sweep 'a b.yaml'"
    assert "rcray-store/" in one.runtime_env["excludes"]


def test_no_cluster_there():
    with pytest.raises(RcrayError, match=r"no Ray cluster answers at http://127\.0\.0\.1:9"):
        connect("http://127.0.0.1:9")


def test_a_job_needs_a_store_that_outlives_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "x.yaml").write_text("name: x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    monkeypatch.delenv("RCRAY_STORE", raising=False)
    monkeypatch.setattr(sys, "argv", ["rcray", "sweep", "x.yaml"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == EXIT_USAGE
    assert "temporary copy" in capsys.readouterr().err
    assert not (tmp_path / "rcray-store").exists()
