"""The command line. Heavy libraries are imported inside the commands that need them."""

import logging
import sys
from typing import Annotated, NoReturn

import typer

from rcray import __version__
from rcray.cli import before, cells, diagnose, results  # in the order of the help; they add their commands
from rcray.cli.shared import app
from rcray.errors import EXIT_INTERRUPTED, RcrayError, printable
from rcray.extras import explain_missing
from rcray.secrets import redact, redact_logs

__all__ = ["app", "before", "cells", "diagnose", "main", "results"]


def main() -> None:
    """Entry point: errors raised on purpose become one screen and an exit code, without a traceback."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    redact_logs()
    try:
        app(standalone_mode=True)
    except RcrayError as error:
        _end(error)
    except ModuleNotFoundError as error:  # an extra's module, imported where it is needed
        if (explained := explain_missing(error)) is None:
            raise
        _end(explained)
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:  # typer makes this of Ctrl-C, without a word
            typer.echo("interrupted; the same command continues", err=True)
        raise


def _end(error: RcrayError) -> NoReturn:
    typer.echo(printable(redact(f"error: {error}")), err=True)
    sys.exit(error.exit_code)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rcray {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="print it")] = False,
) -> None:
    pass
