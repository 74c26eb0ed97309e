"""The bad-input campaign: wrong configurations and wrong rows, each refused on one screen that names the place.

    python -m tests.campaign.bad_input [CONFIGS]

Every wrong input goes through the program's own entry point, in this process. It must end with exit code 2, without a
traceback, print nothing on stdout and leave nothing behind.
"""

import contextlib
import io
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import typer.main
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from rcray import cli
from rcray.config.data import DataConfig
from rcray.data.pairs import check_pairs
from rcray.errors import EXIT_USAGE, DataError
from tests.campaign.wrong_files import WRONG, Wrong
from tests.campaign.wrong_rows import WRONG_ROWS, row

LINES, WIDTH = 25, 120  # one screen
#: Commands that refuse a file before they do anything; the first starts nothing even where it accepts one.
SAFE = "show-config"
COMMANDS = ("plan", "train", "sweep", "evaluate", "report")
PARSER = typer.main.get_command(cli.app)  # built once: typer would make it anew for each of thousands of commands


@dataclass
class Tally:
    """What the campaign saw."""

    kinds: Counter[str] = field(default_factory=Counter)
    seen: set[tuple[bytes, tuple[str, ...]]] = field(default_factory=set)
    most_lines: int = 0
    most_characters: int = 0
    rows: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    @property
    def configs(self) -> int:
        """Different ones."""
        return len(self.seen)

    def describe(self) -> str:
        """The campaign's figures."""
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        rows = ", ".join(f"{count} {kind}" for kind, count in self.rows.most_common())
        return (
            f"bad input: {self.configs} different invalid configurations refused with exit code {EXIT_USAGE} and the "
            f"field named, no traceback; longest message {self.most_lines} lines, {self.most_characters} characters\n"
            f"  configurations: {kinds}\n"
            f"  {sum(self.rows.values())} wrong data rows, each refused by its line: {rows}\n"
            f"  {self.seconds:.1f} s"
        )


@contextlib.contextmanager
def working_directory(path: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(path)
    try:
        yield
    finally:
        os.chdir(before)


def run(arguments: Sequence[str]) -> tuple[Any, str, str]:
    """The program with these arguments: exit code, stdout, stderr."""
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", ["rcray", *arguments]),
        mock.patch("typer.main.get_command", return_value=PARSER),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code or 0
    return code, out.getvalue(), err.getvalue()


def check(wrong: Wrong, command: str, folder: Path, tally: Tally) -> None:
    """Refused as it should be: by the safe command first, since another would start what it accepts."""
    (folder / "bad.yaml").write_bytes(wrong.content)
    for name in dict.fromkeys((SAFE, command)):
        code, out, err = run([name, "bad.yaml", *wrong.arguments])
        lines = err.splitlines()
        assert code == EXIT_USAGE, f"exit code {code}, not {EXIT_USAGE}: {err[-2000:]}"
        assert out == "", out
        assert "Traceback" not in err
        assert wrong.named in err, f"{wrong.named!r} is not named: {err[:2000]}"
        assert len(lines) <= LINES and len(err) <= LINES * WIDTH, f"{len(lines)} lines, {len(err)} characters"
        assert all(line.isprintable() for line in err.split("\n")), f"control characters reach the terminal: {err!r}"
        assert [path.name for path in folder.iterdir()] == ["bad.yaml"], "something was left behind"
    tally.most_lines = max(tally.most_lines, len(lines))
    tally.most_characters = max(tally.most_characters, len(err))
    key = (wrong.content, wrong.arguments)
    if key not in tally.seen:
        tally.seen.add(key)
        tally.kinds[wrong.kind] += 1


def _settings(examples: int) -> settings:
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
    )


def refuse_configs(examples: int, folder: Path, tally: Tally) -> None:
    """So many drawn configurations."""

    @_settings(examples)
    @given(WRONG, st.sampled_from([*COMMANDS, *[SAFE] * len(COMMANDS)]))
    def each(wrong: Wrong, command: str) -> None:
        check(wrong, command, folder, tally)

    with working_directory(folder):
        each()


def refuse_rows(examples: int, folder: Path, tally: Tally) -> None:
    """So many wrong rows, each at a drawn line of a file of good ones."""
    path = folder / "rows.jsonl"

    @_settings(examples)
    @given(
        st.sampled_from([*WRONG_ROWS]).flatmap(lambda kind: st.tuples(st.just(kind), WRONG_ROWS[kind])),
        st.integers(0, 3),
    )
    def each(drawn: tuple[str, bytes], before: int) -> None:
        kind, wrong = drawn
        path.write_bytes(b"\n".join([*[row()] * before, wrong, row()]) + b"\n")
        try:
            check_pairs(DataConfig(name=str(path), bad_rows="fail"))
        except DataError as error:
            message = str(error)
            assert error.exit_code == EXIT_USAGE
        else:
            raise AssertionError(f"accepted: {wrong[:200]!r}")
        assert f"{path}:{before + 1}:" in message and "fix:" in message
        assert len(message) <= LINES * WIDTH and len(message.splitlines()) <= LINES
        check_pairs(DataConfig(name=str(path)))  # counted and left out, where that is asked for
        tally.rows[kind] += 1

    each()


def campaign(configs: int, rows: int) -> Tally:
    """Both parts, in a directory of their own."""
    tally = Tally()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        inner = Path(folder) / "configs"
        inner.mkdir()
        refuse_configs(configs, inner, tally)
        refuse_rows(rows, Path(folder), tally)
    tally.seconds = time.perf_counter() - started
    return tally


if __name__ == "__main__":
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 2500
    print(campaign(wanted, wanted // 5).describe())
