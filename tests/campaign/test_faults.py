"""The fault campaign in part; `python -m tests.campaign.faults` does all of it and prints a table."""

from pathlib import Path

import pytest

from tests.campaign.faults.campaign import BY_NAME, FAULTS, Campaign

ROOT = Path(__file__).parents[2]
#: Left to `make campaign`, with the tests that prove most of the same: the rest is the comparison of the tables.
ELSEWHERE = {
    "worker": ["tests/ray/test_groups.py"],
    "trial": ["tests/ray/test_sweep_faults.py"],
    "driver": ["tests/ray/test_sweeps.py"],
    "mlflow-server": ["tests/track/test_sweeps_tracked.py"],
    "read-only-store": ["tests/unit/test_store.py"],
    "checkpoint": ["tests/unit/test_checkpoint.py"],
    "caches": ["tests/unit/test_encoded_cache.py", "tests/unit/test_reference.py", "tests/unit/test_tiny.py"],
    "records": ["tests/unit/test_dynamics_recorder.py"],
}
HERE = [fault for fault in FAULTS if fault.name not in ELSEWHERE]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory, model_cache):
    return Campaign(tmp_path_factory.mktemp("faults"), model_cache)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("fault", HERE, ids=lambda fault: fault.name)
def test_the_same_command_brings_the_same_tables(campaign, fault, capsys):
    result = campaign.run(fault)
    with capsys.disabled():
        print(f"\n{result.line()}")
    if result.same is None:
        pytest.skip(result.happened)
    assert result.ok, result.problem


def test_what_is_left_out_is_tried_elsewhere():
    assert ELSEWHERE.keys() < BY_NAME.keys()
    assert all((ROOT / path).is_file() for paths in ELSEWHERE.values() for path in paths)
