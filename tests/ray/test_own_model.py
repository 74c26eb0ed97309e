"""A model directory and a file that came from elsewhere: init, plan, sweep, and nothing is edited.

Its sweep is the one whose sockets are watched: nobody else on the network can reach one.
"""

import json
import shutil

import pytest

from tests.ray.sweeping import RCRAY, run
from tests.security.test_loopback import RAY, all_on_loopback, watched

pytestmark = pytest.mark.ray


def test_three_commands_from_a_directory_and_a_file_to_a_report(tmp_path, model_cache, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (source,) = [path for path in (model_cache / "models").glob("tiny-neox*") if path.is_dir()]
    shutil.copytree(source, tmp_path / "models" / "mine")
    rows = [{"prompt": f"map {n}", "chosen": "a b c d", "rejected": "d c b"} for n in range(60)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = run([*RCRAY, "init", "mine.yaml", "--model", "./models/mine", "--data", "pairs.jsonl", "--method", "lora"])
    assert "mine.yaml" in said
    said = run([*RCRAY, "plan", "mine.yaml"])
    assert "known after a download" not in said and "60 rows, 54 to train on, 6 held out" in " ".join(said.split())
    one = ["--set", "objective=cpo", "--set", "calibration.enabled=true"]
    sockets, said = watched([*RCRAY, "sweep", "mine.yaml", *one, "--no-tracking", "--no-figures"])
    all_on_loopback(sockets, {*RAY, "sweep"})
    assert "1 ok" in said and "mine (lora) · cpo · RC" in said
    assert (tmp_path / "rcray-store" / "experiments" / "mine" / "report.html").is_file()
    assert "1 cached" in run([*RCRAY, "sweep", "mine.yaml", *one, "--no-tracking", "--no-figures"])
