"""The fault campaign, one test for each fault; `python -m tests.campaign.faults` prints the same as a table."""

import pytest

from tests.campaign.faults.campaign import FAULTS, Campaign

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory, model_cache):
    return Campaign(tmp_path_factory.mktemp("faults"), model_cache)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_same_command_brings_the_same_tables(campaign, fault, capsys):
    result = campaign.run(fault)
    with capsys.disabled():
        print(f"\n{result.line()}")
    if result.same is None:
        pytest.skip(result.happened)
    assert result.ok, result.problem
