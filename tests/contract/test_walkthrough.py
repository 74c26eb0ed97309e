"""Every command and every snippet of README and docs, run in order as a reader would."""

import re
import shutil
import subprocess
import time

import pytest
import yaml

from rcray.config import load_experiment
from rcray.config.objectives import BUILT_IN
from rcray.sweep.grid import expand
from tests.contract.pages import ROOT, blocks
from tests.contract.walkthrough import INSTEAD, printed_commands, walk
from tests.evaluate import judge_server


def test_what_is_run_instead_is_printed_somewhere():
    assert set(INSTEAD) <= set(printed_commands()), "a rule for a command that is no longer there"
    recipe = re.search(r"^quickstart:.*\n\t\$\(BIN\)/(.*)", (ROOT / "Makefile").read_text(), re.MULTILINE).group(1)
    assert INSTEAD["make quickstart"].command == recipe.replace("$(STORE)", "rcray-store")
    assert all(rule.why for rule in INSTEAD.values())


#: What a command must have said for the text to be true, as patterns.
SAYS = {
    "make quickstart": "3 ok",
    "make real": "3 ok",
    "rcray plan experiments/smoke.yaml --measure": "Measured here",
    "rcray export RUN_ID --to exported --merge": "from_pretrained",
    "rcray doctor": "0 broken",
    "rcray init my.yaml --model ./my-model --data pairs.jsonl --method lora": "rcray sweep my.yaml",
    "rcray objectives": f"{len(BUILT_IN)} objectives",
    "rcray plan experiments/main.yaml": "GPU",
    "rcray sweep quickstart --store rcray-store": "3 cached",
    "rcray train quickstart --set objective=ipo --set calibration=update --store rcray-store": "ok, 4 steps",
    "rcray train experiments/quickstart.yaml --set objective=ipo --set calibration=update": "already finished",
    "rcray sweep my.yaml": r"\d ok",
    "rcray sweep experiments/quickstart.yaml": "3 cached",
    "rcray sweep experiments/main.yaml --tiny": "2 ok",
    "rcray submit experiments/main.yaml": "2 cached",
    "rcray sweep experiments/main.yaml": "2 cached",
    "RAY_AUTH_MODE=token ray job submit --working-dir . -- python -m rcray sweep experiments/main.yaml": "2 cached",
    "rcray train experiments/quickstart.yaml --set objective=kto --set calibration=true --profile": "backward",
    "rcray alpaca-eval judge rc.json plain.json": "lc_win_rate",
}


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_every_command_does_what_the_text_says(tmp_path, model_cache, quick_cache, monkeypatch, capsys):
    monkeypatch.setattr(judge_server, "number_of", len)
    with walk(tmp_path / "clone") as reader:
        shutil.copytree(quick_cache / "tiny-neox", reader.folder / "my-model")
        shutil.copytree(model_cache, reader.folder / "rcray-store" / "cache")
        wrong = []  # all of it is told at the end: a walk takes minutes, and a mistake in a page is seldom alone
        for printed in dict.fromkeys(printed_commands()):  # what is printed twice is run once
            try:
                output = reader.run(printed)
            except (AssertionError, subprocess.TimeoutExpired) as fault:
                wrong.append(str(fault))
            else:
                if not re.search(SAYS.get(printed, ""), output):
                    wrong.append(f"$ {printed}\n{output}\nnever says {SAYS[printed]!r}")
            with capsys.disabled():
                print(f"\n{reader.took.get(printed, 0):6.1f} s  {printed}", end="", flush=True)
        assert not wrong, "\n\n".join(wrong)
        started = time.monotonic()
        _snippets(reader)
        reader.took["snippets"] = time.monotonic() - started
        assert (reader.folder / "rcray-store/experiments/quickstart/report.html").is_file()
        assert (reader.folder / "runs-of-today/experiments/quickstart/ledger.json").is_file()
        assert (reader.folder / "ledger-report/report.html").is_file()
    with capsys.disabled():
        print(f"\n{reader.took['snippets']:6.1f} s  snippets")


def _snippets(reader):
    """The objective of one's own, trained; every YAML block, resolved as part of an experiment."""
    own = next(block for block in blocks("python") if "def squared_hinge" in block)
    (reader.folder / "my_objectives.py").write_text(own)
    small = yaml.safe_load((reader.folder / "experiments" / "quickstart.yaml").read_text())["run"]
    for number, block in enumerate(blocks("yaml")):
        content = yaml.safe_load(block)
        if "objective" in content:
            content = {"run": {**small, **content}, "evaluation": {"benchmarks": []}}
        content = {"name": f"snippet-{number}", **content}
        file = reader.folder / "experiments" / f"snippet-{number}.yaml"
        file.write_text(yaml.safe_dump(content))
        reader.finish(f"rcray plan {file}")
        if "my_objectives" in block:
            assert "ok, 4 steps" in reader.finish(f"rcray train {file} --no-tracking")
        if content["name"] == "my-grid":
            assert len(expand(load_experiment(file))) == 9


@pytest.mark.parametrize(
    ("given", "logged"), [("=Calibrator()", "band/in_band"), ("= UpdateSteering()", "update/log_alpha")]
)
def test_a_trl_snippet_makes_a_trainer(tmp_path, quick_cache, given, logged):
    pytest.importorskip("trl")
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig

    snippet = next(block for block in blocks("python") if "CalibratedDPOTrainer(" in block and given in block)
    rows = [{"prompt": "render a", "chosen": " b", "rejected": " c d"}] * 4
    scope = {
        "model": AutoModelForCausalLM.from_pretrained(quick_cache / "tiny-mistral"),
        "tokenizer": AutoTokenizer.from_pretrained(quick_cache / "tiny-mistral"),
        "pairs": Dataset.from_list(rows),
        "config": DPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", max_steps=3, logging_steps=1),
    }
    before = [parameter.detach().clone() for parameter in scope["model"].parameters()]
    exec(snippet, scope)
    scope["trainer"].train()
    assert sum(logged in entry for entry in scope["trainer"].state.log_history) == 3
    moved = [bool((p != old).any()) for p, old in zip(scope["model"].parameters(), before, strict=True)]
    assert any(moved)
