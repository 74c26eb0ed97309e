"""What belongs to which extra of the package, and one line for whoever has not installed it.

The core (objectives, calibration, band, configuration, the commands that plan) needs none of these modules. Each of the
others names its modules here and its packages in pyproject.toml; a test holds the two together.
"""

import contextlib
import importlib.util
from collections.abc import Iterable, Iterator

from rcray.errors import EXIT_USAGE, RcrayError

#: Modules of each extra that rcray imports. An extra may bring others along: see pyproject.toml.
EXTRAS = {
    "report": ("matplotlib", "pyarrow", "scipy"),
    "sweep": ("bitsandbytes", "datasets", "peft", "ray", "safetensors", "tokenizers", "transformers"),
    "track": ("mlflow",),
    "eval": ("httpx2", "lm_eval", "openai"),
    "search": ("optuna",),
    "trl": ("trl",),
    "real": ("gguf", "sentencepiece"),
}
_EXTRA_OF = {module: extra for extra, modules in EXTRAS.items() for module in modules}


class MissingExtraError(RcrayError, ImportError):
    """Something that is not installed; the message is one line, with the command that installs it."""

    exit_code = EXIT_USAGE


def missing_extra(modules: Iterable[str], extras: Iterable[str]) -> MissingExtraError:
    """The error for modules that are not there, and for the extras that bring them."""
    names = ", ".join(dict.fromkeys(modules))
    return MissingExtraError(f"{names} not installed, and needed here: pip install 'rcray[{','.join(extras)}]'")


def require(*extras: str, otherwise: str = "") -> None:
    """Refuses before anything starts: names every extra that lacks a module at once; `otherwise`: what else helps."""
    absent = {extra: [module for module in EXTRAS[extra] if not _is_installed(module)] for extra in extras}
    wanted = [extra for extra, modules in absent.items() if modules]
    if wanted:
        error = missing_extra([module for extra in wanted for module in absent[extra]], wanted)
        raise MissingExtraError(error.message + otherwise)


@contextlib.contextmanager
def explained_imports() -> Iterator[None]:
    """Around imports of an extra's modules: where one is missing, the error says how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if explained := explain_missing(error):
            raise explained from error
        raise


def explain_missing(error: ModuleNotFoundError) -> MissingExtraError | None:
    """The same error as one line, if the module belongs to an extra."""
    module = (error.name or "").partition(".")[0]
    return missing_extra([module], [_EXTRA_OF[module]]) if module in _EXTRA_OF else None


def installed_extras() -> dict[str, list[str]]:
    """Every extra, and which of its modules are missing."""
    return {extra: [name for name in modules if not _is_installed(name)] for extra, modules in EXTRAS.items()}


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # ValueError: a module without a spec, as a test may leave one
        return False
