"""The cells that are tried on the pretended GPU, and what was seen of them, by one process for all."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from rcray.config import RunConfig
from rcray.config.models import MODELS
from rcray.sweep.pretend.peaks import LONGEST

ROOT = Path(__file__).parents[2]
GPU = {"gpus_per_worker": 1}
TYPICAL = (180, 300, 260)
#: Two layers stand for all: what a step waits for and computes in does not depend on how many there are.
LAYERS = 2
PRESETS = ("pythia-410m", "pythia-2.8b", "mistral-7b", "qwen2.5-7b")
#: One of each family, and of what they read: margins without a reference, tokens, whole distributions, the unpaired
#: with a baseline of their own, cures with a term of the chosen answer, and those that TRL has beside.
FAMILIES = ("simpo", "ti-dpo", "tdpo", "kto", "rpo", "exo")


def cell(model, objective="dpo", *, rc=True, lengths=TYPICAL, layers=LAYERS, looking=False, **settings):
    given = {
        "model": model,
        "data": "ultrafeedback",
        "objective": objective,
        "calibration": {"enabled": rc, "look_every": 0, **settings.pop("calibration", {})},
        "execution": {**GPU, **settings.pop("execution", {})},
        **settings,
    }
    config = RunConfig.model_validate(given)
    return {"config": config.model_dump(mode="json"), "lengths": lengths, "layers": layers, "looking": looking}


#: For the plan: at a length that its figures were not taken at.
BETWEEN = sum(LONGEST) // 2
LONG = (20, BETWEEN - 20, BETWEEN - 20)
#: From so many layers on, each adds the same to the peak of a step: with fewer, blocks that are computed again in the
#: backward hold less than the last one and the head.
FEW = {"pythia-410m": LAYERS, "pythia-2.8b": 6, "mistral-7b": 6, "qwen2.5-7b": 6}
CELLS = {
    **{name: cell(name, lengths=LONG, layers=FEW[name]) for name in PRESETS},
    "full float32": cell("pythia-410m", train={"precision": "float32"}),
    "qlora plain": cell("mistral-7b", rc=False),
    "qlora official": cell("mistral-7b", fidelity="official"),
    **{f"family {name}": cell("mistral-7b" if name == "ti-dpo" else "pythia-410m", name) for name in FAMILIES},
    "step": cell("mistral-7b", calibration={"granularity": "step"}, train={"micro_batch_size": 2}),
    "rows": cell("mistral-7b", execution={"prompt_sharing": "off"}),
}
#: Steps of runs that take looks, with one and between two.
UPDATE = {"kind": "update", "look_every": 10}
LOOKING = {
    "look, update": cell("mistral-7b", calibration=UPDATE, looking=True),
    "look, update, full": cell("pythia-410m", calibration=UPDATE, looking=True),
    "look, update, float16": cell("mistral-7b", fidelity="official", calibration=UPDATE, looking=True),
    "look, published": cell("mistral-7b", calibration={"look_every": 10}, looking=True),
    "look, none": cell("mistral-7b", rc=False, calibration={"look_every": 10}, looking=True),
    "between, update": cell("mistral-7b", calibration=UPDATE),
    "between, none": cell("mistral-7b", rc=False, calibration={"look_every": 10}),
}
CELLS |= LOOKING
#: Forwards without a graph: what they hold beside the weights does not depend on the layers either.
FORWARDS = {f"forward {name}": {**cell(name, lengths=(20, 1004, 1004)), "forward": True} for name in PRESETS}
#: One layer more, from which the peak of a whole preset follows.
DEEPER = {f"deeper {name}": cell(name, lengths=LONG, layers=FEW[name] + 1) for name in PRESETS}
#: All layers: minutes.
WHOLE = {name: cell(name, lengths=LONG, layers=None) for name in PRESETS}


@cache
def seen():
    """What was seen of the cells, by one process for all."""
    return look_at({**CELLS, **DEEPER, **FORWARDS})


def whole_peak(name):
    """Bytes that a step of all layers of a preset holds at once."""
    few, more = (seen()[key]["peak_bytes"] for key in (name, f"deeper {name}"))
    return few + (MODELS[name].shape.layers - FEW[name]) * (more - few)


def look_at(cells):
    """The same of any."""
    done = subprocess.run(
        [sys.executable, "-m", "rcray.sweep.pretend", "--cells"],
        input=json.dumps(list(cells.values())),
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(cells, json.loads(done.stdout), strict=True))
