"""One error family. A message says what failed, what was given, what is allowed and how to fix it."""

from collections.abc import Iterable
from difflib import get_close_matches

#: Exit codes of the command line; docs/commands.md lists them.
EXIT_FAILED = 1  # something ran and did not succeed
EXIT_USAGE = 2  # the input was refused before anything ran
EXIT_INTERRUPTED = 130  # Ctrl-C; the same command continues


class RcrayError(Exception):
    """Base of every error raised on purpose; shown to people without a traceback."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, fix: str | None = None):
        self.message = message
        self.fix = fix
        super().__init__(message if fix is None else f"{message}\n  fix: {fix}")

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword arguments do not pickle by default, and these cross process borders.
        return (_rebuild, (type(self), self.message, self.fix))


def _rebuild(kind: type["RcrayError"], message: str, fix: str | None) -> "RcrayError":
    return kind(message, fix=fix)


class ConfigError(RcrayError):
    """An experiment file, an override or a field in it is not valid."""

    exit_code = EXIT_USAGE


class DataError(RcrayError):
    """Preference data that cannot be read, or that holds nothing usable."""

    exit_code = EXIT_USAGE


class ModelError(RcrayError):
    """A model or tokenizer that cannot be found or loaded."""

    exit_code = EXIT_USAGE


class StoreError(RcrayError):
    """The store is not writable, or holds something that does not belong to this run."""


class RunLockedError(StoreError):
    """Another process is writing the same run."""


class StorageUnavailableError(StoreError):
    """Remote storage that cannot be reached, read or written now."""


class CheckpointError(StoreError):
    """A checkpoint that is incomplete or does not match its manifest."""


class DegenerateRunError(RcrayError):
    """Training met a non-finite value; the run has no score from here on."""


def printable(text: str) -> str:
    """The text without control characters: a name in a file must not be able to steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean 'x'? (known: ...)` for an unknown name."""
    options = sorted(known)
    close = get_close_matches(str(name), options, n=1, cutoff=0.5)
    guess = f"; did you mean {close[0]!r}?" if close else ""
    return f"{guess} (known: {', '.join(options)})" if options else ""
