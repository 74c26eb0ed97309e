"""What `rcray submit` uploads and refuses, before anything reaches a cluster."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rcray import cli
from rcray.errors import EXIT_USAGE, ConfigError, RcrayError
from rcray.sweep.submit import UPLOAD_LIMIT, Submission, check_size, file_in_job, job_client, parse_env, submit


def test_the_environment_of_a_job():
    assert parse_env(["HF_HUB_OFFLINE=1", "A=b=c"]) == {"HF_HUB_OFFLINE": "1", "A": "b=c"}
    assert parse_env(["TOKENIZERS_PARALLELISM=false"]), "only part of its name is that of a secret"


@pytest.mark.parametrize(
    "item",
    [
        *("HF_TOKEN=x", "OPENAI_API_KEY=x", "DB_PASSWORD=x", "URI=http://me:pw@host", "nonsense"),
        *("AZURE_STORAGE_KEY=x", "PGPASSWORD=x", "GPG_PASSPHRASE=x", "NOTE=hf_pw0123456789abcdef"),
    ],
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


def large(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(UPLOAD_LIMIT + 1)  # takes no room on the disk


def test_what_git_or_ray_ignores_is_not_uploaded(tmp_path):
    large(tmp_path / "data" / "pairs.bin")
    large(tmp_path / "inner" / "more.bin")
    large(tmp_path / "inner" / "scratch" / "x.txt")
    (tmp_path / ".gitignore").write_text("# ours\n/data/\n*.bin\n")
    with pytest.raises(ConfigError, match="inner 100 MiB"):
        check_size(tmp_path)
    (tmp_path / ".rayignore").write_text("scratch/\n")
    check_size(tmp_path)


class _Jobs:
    """A cluster that remembers its jobs; one of them was deleted."""

    def __init__(self, *numbers):
        self.numbers, self.submitted = numbers, None

    def list_jobs(self):
        status = SimpleNamespace(is_terminal=lambda: True)
        return [SimpleNamespace(submission_id=f"{SUBMISSION.prefix}-{n}", status=status) for n in self.numbers]

    def submit_job(self, *, submission_id, **_):
        self.submitted = submission_id
        return submission_id


SUBMISSION = Submission("x", ["sweep", "x.yaml"], Path())


def test_a_new_job_has_an_id_of_its_own(monkeypatch):
    cluster = _Jobs(2, 10)
    monkeypatch.setattr("rcray.sweep.submit.job_client", lambda address: cluster)
    monkeypatch.setattr("rcray.sweep.submit.check_size", lambda folder: None)
    assert submit(SUBMISSION, "http://127.0.0.1:9", follow_log=False, write=lambda text: None) == 0
    assert cluster.submitted == f"{SUBMISSION.prefix}-11"


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
        job_client("http://127.0.0.1:9")


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
