"""The experiments that ship with the package: `rcray sweep quickstart` works in any directory.

Their one place is `experiments/` of the repository; a wheel carries them inside the package (setup.py).
"""

from pathlib import Path

import rcray

_PACKAGE = Path(rcray.__file__).parent


def bundled_experiments() -> dict[str, Path]:
    """Name -> file; empty only where neither a wheel nor a clone is at hand."""
    for folder in (_PACKAGE / "experiments", _PACKAGE.parent / "experiments"):
        if (folder / "quickstart.yaml").is_file():
            return {path.stem: path for path in sorted(folder.glob("*.yaml"))}
    return {}


def find_experiment(given: Path) -> Path:
    """A file that is there wins; else the bundled experiment of that name; else the path as given."""
    if given.is_file():
        return given
    return bundled_experiments().get(str(given), given)
