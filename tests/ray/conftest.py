"""What sweeps on a real Ray share."""

from collections.abc import Iterator

import pytest

from tests.ray.sweeping import USER_CODE, environment


@pytest.fixture(scope="module")
def one_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One private Ray for the sweeps of a module; the user's code is in reach of its workers."""
    from rcray.sweep.connection import connected

    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment().items():
            patch.setenv(name, value)
        patch.setenv("RCRAY_TEST_DEATHS", str(tmp_path_factory.mktemp("ray") / "deaths"))
        patch.syspath_prepend(USER_CODE)
        with connected(needs_dashboard=False):
            yield
