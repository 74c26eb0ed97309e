"""Files of a half-done store damaged between two commands: cut short, bytes flipped, or replaced by garbage."""

import json
from pathlib import Path

from rcray.store import RunDir
from rcray.train.checkpoint import checkpoints
from rcray.train.dynamics import sound_until
from tests.campaign.faults.ground import Ground

GARBAGE = b"\x00\xff\xfenot what was written\n"


def truncate(path: Path) -> None:
    content = path.read_bytes()
    assert content, path
    path.write_bytes(content[: len(content) // 2])


def flip(path: Path) -> None:
    """Sixteen bytes in the middle, each with all bits turned."""
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 16] = bytes(255 - byte for byte in content[middle : middle + 16])
    path.write_bytes(content)


def finished_and_unfinished(ground: Ground) -> tuple[RunDir, RunDir]:
    done = [run for run in ground.runs() if run.read_status().status == "ok"]
    rest = [run for run in ground.runs() if run not in done]
    assert len(done) == len(rest) == 1, "the store is not half done"
    return done[0], rest[0]


def damage_checkpoint(ground: Ground) -> str:
    """The newest one twice over; the run must go on from the one before, and not from the start."""
    _, run = finished_and_unfinished(ground)
    before, newest = checkpoints(run.checkpoints)[-2:]
    truncate(newest / "optimizer.pt")
    flip(newest / "model.safetensors")
    old = [path for path in run.dynamics.iterdir() if int(path.stem.split("-")[-1]) <= int(before.name.split("-")[1])]
    ground.unchanged = {path: path.stat().st_mtime_ns for path in old}
    return f"{newest.name} cut short and flipped; went on from {before.name}"


def damage_caches(ground: Ground) -> str:
    damaged = []
    for pattern, harm in (
        ("encoded/**/tokens.npy", flip),
        ("encoded/**/offsets.npy", truncate),
        ("reference/*.parquet", flip),
        ("models/*/model.safetensors", flip),
        ("evaluation/*.json", truncate),
    ):
        files = [path for path in ground.store.cache.glob(pattern) if path.is_file()]
        assert files, f"no {pattern}"
        for path in files:
            harm(path)
        damaged += files
    return f"{len(damaged)} files: encoded pairs, reference, weights, measurements; built again"


def damage_state(ground: Ground) -> str:
    """Everything a sweep writes down about itself; the finished cell loses its status and is trained again."""
    done, rest = finished_and_unfinished(ground)
    truncate(ground.experiment / "ledger.json")
    (ground.experiment / "tracking.jsonl").write_bytes(GARBAGE)
    truncate(done.status)
    rest.status.write_bytes(GARBAGE)
    done.evaluation.write_bytes(b"")
    (done.path / "environment.json").write_text(json.dumps({"not": "a list"}))
    ground.expected_words += ("status.json is damaged", "tracking.jsonl is damaged", "kept as status.json.damaged-1")
    return "ledger, delivery book, both status files, evaluation, environment; set aside, made again"


def damage_records(ground: Ground) -> str:
    done, rest = finished_and_unfinished(ground)
    first, last = (sorted(run.dynamics.glob("part-*.parquet"))[0] for run in (done, rest))
    flip(first)
    truncate(last)
    assert sound_until(done.dynamics) == sound_until(rest.dynamics) == 0
    ground.expected_words += (f"run {done.run_id}: its step records are damaged",)
    return "a part of each cell; both trained again from before the damage"
