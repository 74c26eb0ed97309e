"""The wall clock as Python reads it, moved under every process of a running sweep. The machine's own stays as it is."""

import os
from pathlib import Path

from tests.campaign.faults.ground import Ground
from tests.ray.sweeping import environment

SITE = Path(__file__).parent / "clock_site"
HOUR, YEAR = 3600, 365 * 24 * 3600


def jump_clock(ground: Ground) -> str:
    """Back an hour, then forward a year, within one command; the next one has the right time again."""
    offset, seen = ground.folder / "clock-offset", ground.folder / "clock-seen"
    _set(offset, 0)
    seen.mkdir()
    ground.environment |= {
        "PYTHONPATH": os.pathsep.join([str(SITE), environment()["PYTHONPATH"]]),
        "RCRAY_CAMPAIGN_CLOCK": str(offset),
        "RCRAY_CAMPAIGN_CLOCK_SEEN": str(seen),
    }
    command = ground.start()
    run = ground.await_moment(command, ground.under_way)
    follower, trial = command.called("--follow").pid, run.read_status().writer.pid
    _set(offset, -HOUR)
    ground.await_moment(command, ground.half_done)
    _set(offset, YEAR)
    command.wait(expect=0)
    for name, pid in (("driver", command.process.pid), ("follower", follower), ("trial", trial)):
        assert {-HOUR, YEAR} & _offsets_seen(seen, pid), f"the {name}'s clock did not jump"
    assert {-HOUR, YEAR} <= _offsets_seen(seen, command.process.pid)
    _set(offset, 0)
    return "back an hour, then forward a year; nothing noticed, exit 0"


def _set(file: Path, seconds: int) -> None:
    temporary = file.with_suffix(".new")
    temporary.write_text(str(seconds))
    os.replace(temporary, file)


def _offsets_seen(folder: Path, pid: int) -> set[int]:
    file = folder / str(pid)
    return {int(line) for line in file.read_text().split()} if file.exists() else set()
