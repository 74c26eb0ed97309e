"""The soak, shortened; `python -m tests.campaign.soak` runs two hundred cells."""

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaign.soak import GROWTH_MB, Sample, Soak, soak


@pytest.fixture
def folder():
    """Short: the paths of Ray's sockets have a limit."""
    short = Path(tempfile.mkdtemp(prefix="soak", dir="/tmp"))
    yield short
    shutil.rmtree(short)


@pytest.mark.ray
@pytest.mark.slow
def test_a_short_soak_is_flat_and_clean(folder, capsys):
    outcome = soak(20, folder)
    with capsys.disabled():
        print(f"\n{outcome.describe()}")
    assert outcome.problems() == []
    assert outcome.steady and max(sample.processes for sample in outcome.samples) > 5


def steady(cells, megabytes):
    samples = [Sample(i, i, 100 + megabytes * i / cells, 0, 9, 30, True) for i in range(cells)]
    return Soak(cells, 0, cells, samples, {"ok": cells})


def test_what_grows_or_stays_is_noticed():
    flat = steady(200, 0)
    assert flat.problems() == [] and flat.slope == 0
    grown = steady(200, 2 * GROWTH_MB)
    assert grown.slope == pytest.approx(GROWTH_MB) and "the driver grew" in grown.problems()[0]
    for change in (
        {"exit_code": 1},
        {"tally": {"ok": 199, "failed": 1}},
        {"processes_left": ["1 raylet"]},
        {"files_left": ["ray/session_latest"]},
        {"samples": []},
        {"samples": [replace(sample, files=30 + i) for i, sample in enumerate(flat.samples)]},
    ):
        assert replace(flat, **change).problems()
