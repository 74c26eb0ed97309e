"""What pyproject.toml cannot say: a wheel carries experiments/*.yaml inside the package, from their one place."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent


class BuildWithExperiments(build_py):
    """Copies the shipped experiments beside the modules; an editable installation reads them where they are."""

    def run(self) -> None:
        """As setuptools does it, and then the experiments."""
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "rcray" / "experiments"
        self.mkpath(str(target))
        for file in sorted((ROOT / "experiments").glob("*.yaml")):
            self.copy_file(str(file), str(target / file.name))


setup(cmdclass={"build_py": BuildWithExperiments})
