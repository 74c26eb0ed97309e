"""`python -m rcray.sweep.pretend`: steps on the pretended GPU, in a process that does nothing else.

Without arguments the peaks of the presets are measured and written into rcray/sweep/peaks.json. With `--cells` it reads
cells as JSON on standard input, `[{"config": ..., "lengths": [prompt, chosen, rejected], "layers": n, "looking": true},
...]`, and answers with what was seen of each, `"forward": true` of a forward without a graph; with `--peak` one
configuration, and answers with its peak.
"""

import gc
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from rcray.config import RunConfig
from rcray.sweep.pretend.peaks import measured_peak, preset_peaks
from rcray.sweep.pretend.steps import Lengths, pretended_forward, pretended_step

TARGET = Path(__file__).parents[1] / "peaks.json"


def main() -> None:
    """Reads what is asked for, and answers."""
    torch.set_num_threads(1)
    gc.freeze()  # what was imported stays: steps are told apart by collecting what the last one left, again and again
    if "--peak" in sys.argv[1:]:
        json.dump(asdict(measured_peak(RunConfig.model_validate_json(sys.stdin.read()))), sys.stdout)
        return
    if "--cells" in sys.argv[1:]:
        cells = json.load(sys.stdin)
        json.dump([_answer(cell) for cell in cells], sys.stdout)
        return
    peaks = preset_peaks(lambda line: print(line, file=sys.stderr))
    content = {"torch": torch.__version__.partition("+")[0], "peaks": peaks}
    TARGET.write_text(json.dumps(content, indent=2) + "\n")


def _answer(cell: dict) -> dict:
    config = RunConfig.model_validate(cell["config"])
    try:
        lengths, layers = Lengths(*cell["lengths"]), cell.get("layers")
        if cell.get("forward"):
            return asdict(pretended_forward(config, lengths, layers=layers))
        return asdict(pretended_step(config, lengths, layers=layers, looking=cell.get("looking", False)))
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    main()
