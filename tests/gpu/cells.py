"""The cells that are tried on the pretended GPU, and what was seen of them, by one process for all."""

import copy
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from rcray.config import RunConfig
from rcray.config.models import paper_models
from rcray.sweep.pretend.peaks import LONGEST, few_layers

ROOT = Path(__file__).parents[2]
GPU = {"gpus_per_worker": 1}
TYPICAL = (180, 300, 260)
#: Two layers stand for all: what a step waits for and computes in does not depend on how many there are.
LAYERS = 2
PRESETS = paper_models()
#: One of each family, and of what they read: margins without a reference, tokens, whole distributions, cures with a
#: term of the chosen answer, and those that TRL has beside. The unpaired, with their baseline, are a cell of their own.
FAMILIES = ("simpo", "ti-dpo", "tdpo", "rpo", "exo")


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


KTO = {"name": "kto", "baseline": "kl"}
#: For the plan: at a length that its figures were not taken at.
BETWEEN = sum(LONGEST) // 2
LONG = (20, BETWEEN - 20, BETWEEN - 20)
LOOK = {"calibration": {"look_every": 10}, "looking": True}
#: What the plan is held to: the presets as they resolve, with a look.
PLANNED = {name: (name, {**LOOK}) for name in PRESETS}
#: What holds more or less than they do: without looks, activations that are kept, distributions, other models beside.
PLANNED_SLOWLY = {
    "no looks": ("mistral-7b", {}),
    "no looks, full": ("pythia-410m", {}),
    "kept": ("mistral-7b", {**LOOK, "execution": {"gradient_checkpointing": False}}),
    "distributions": ("pythia-410m", {**LOOK, "objective": "tdpo"}),
    "live reference": ("pythia-410m", {"objective": "ti-dpo"}),
    "baseline": ("pythia-410m", {"objective": {"name": "kto", "baseline": "kl"}}),
}
#: From so many layers on each of these adds the same already; `few_layers` is of any model.
FEWER = {"mistral-7b": 4, "qwen2.5-7b": 3}


def planned(name, *, more=0, whole=False):
    """A cell of long pairs in the fewest layers that tell of all, in some `more`, or in all."""
    model, settings = {**PLANNED, **PLANNED_SLOWLY}[name]
    config = RunConfig.model_validate(cell(model, **copy.deepcopy(settings))["config"])
    layers = None if whole else FEWER.get(name, few_layers(config)) + more
    return cell(model, lengths=LONG, layers=layers, **copy.deepcopy(settings))


CELLS = {
    **{name: planned(name) for name in PLANNED},
    "full float32": cell("pythia-410m", train={"precision": "float32"}),
    "qlora plain": cell("mistral-7b", rc=False),
    "qlora official": cell("mistral-7b", fidelity="official"),
    **{f"family {name}": cell("mistral-7b" if name == "ti-dpo" else "pythia-410m", name) for name in FAMILIES},
    "step": cell("mistral-7b", calibration={"granularity": "step"}, train={"micro_batch_size": 2}),
    "scores full": cell("mistral-7b", calibration={"scores": "full"}),
    "kto, baseline": cell("mistral-7b", KTO, train={"micro_batch_size": 2}),
    "rows": cell("mistral-7b", execution={"prompt_sharing": "off"}),
}
#: Steps of runs that take looks, with one and between two.
UPDATE = {"kind": "update", "look_every": 10}
CELLS |= {
    "look, update": cell("mistral-7b", calibration=UPDATE, looking=True),
    "look, update, full": cell("pythia-410m", calibration=UPDATE, looking=True),
}
SLOW_CELLS = {
    **{name: planned(name) for name in PLANNED_SLOWLY},
    "look, update, float16": cell("mistral-7b", fidelity="official", calibration=UPDATE, looking=True),
    "look, published": cell("mistral-7b", calibration={"look_every": 10}, looking=True),
    "look, none": cell("mistral-7b", rc=False, calibration={"look_every": 10}, looking=True),
    "look, scores full": cell("mistral-7b", calibration={"look_every": 10, "scores": "full"}, looking=True),
    "between, update": cell("mistral-7b", calibration=UPDATE),
    "between, none": cell("mistral-7b", rc=False, calibration={"look_every": 10}),
}
ALL = {**CELLS, **SLOW_CELLS}
#: Forwards without a graph: what they hold beside the weights does not depend on the layers either.
FORWARDS = {f"forward {name}": {**cell(name, lengths=(20, 1004, 1004)), "forward": True} for name in PRESETS}
#: All layers: minutes.
WHOLE = {name: planned(name, whole=True) for name in PRESETS}


def seen(name):
    """What was seen of a cell."""
    return (_seen_slowly() if name in SLOW_CELLS else _seen())[name]


@cache
def _seen():
    """By one process for all."""
    return look_at({**CELLS, **FORWARDS, **{f"deeper {name}": planned(name, more=1) for name in PLANNED}})


@cache
def _seen_slowly():
    return look_at({**SLOW_CELLS, **{f"deeper {name}": planned(name, more=1) for name in PLANNED_SLOWLY}})


def whole(name, what="peak_bytes"):
    """Bytes that a step of all layers holds at once, or before: one layer more tells what each adds."""
    every, cell = _seen_slowly() if name in PLANNED_SLOWLY else _seen(), planned(name)
    few, more = (every[key][what] for key in (name, f"deeper {name}"))
    return few + (RunConfig.model_validate(cell["config"]).model.shape.layers - cell["layers"]) * (more - few)


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
