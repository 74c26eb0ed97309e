"""Rows that are not of one kind: told apart by footnotes, never merged silently.

Rows of one table may differ in their fidelity preset, likelihood, data or score estimator; one benchmark may have been
run with different task versions, shots or templates. The rarer kind gets a letter, and a note says what it is; so does
a run that could only be carried out with a setting changed.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rcray.aggregate.groups import Setting
from rcray.config.fidelity import PRESETS

#: How the fields of a metric row are called in a note.
_PROTOCOL_WORDS = {
    "task_version": "task version", "shots": "shots", "chat_template": "chat template", "harness": "lm-eval",
    "limit": "documents per task", "filter": "answer filter", "aggregate": "aggregate", "stderr_kind": "standard error",
}  # fmt: skip


@dataclass(frozen=True)
class Marked:
    """Letters by row, letters by row and benchmark, and what they mean."""

    rows: Mapping[int, str]
    cells: Mapping[tuple[int, str], str]
    notes: tuple[str, ...]


def mark(settings: Sequence[Setting | None], groups: Sequence[str], metrics: Sequence[str]) -> Marked:
    """Finds what differs; `groups` parts the rows whose data may differ by design, `metrics` are the columns."""
    letters = _Letters()
    rows: dict[int, str] = {}
    known = {i: setting for i, setting in enumerate(settings) if setting is not None}
    for name, read, apart in (
        ("fidelity preset", lambda s: s.config.fidelity, False),
        ("likelihood", lambda s: f"{s.config.likelihood} over tokens", False),
        ("data", _data, True),
    ):
        for part in sorted(set(groups), key=groups.index) if apart else [None]:
            values = {i: read(s) for i, s in known.items() if part is None or groups[i] == part}
            for i, letter in letters.give(name, values).items():
                rows[i] = rows.get(i, "") + letter
    for i, setting in known.items():
        for note in sorted({result.note for result in setting.results if result.note}):
            rows[i] = rows.get(i, "") + letters.of(note)
    cells: dict[tuple[int, str], str] = {}
    for metric in metrics:
        protocols = {i: _protocol(s, metric) for i, s in known.items() if s.measured(metric)}
        for i, letter in letters.give(metric.partition("/")[0], protocols).items():
            cells[i, metric] = letter
    return Marked(rows, cells, tuple(letters.notes))


class _Letters:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self._of: dict[str, str] = {}

    def of(self, note: str) -> str:
        """The letter of a note that stands by itself; the same for the same words."""
        if note not in self._of:
            self._of[note] = _letter(len(self.notes))
            self.notes.append(f"[{self._of[note]}] {note}.")
        return self._of[note]

    def give(self, name: str, values: Mapping[int, str]) -> dict[int, str]:
        """A letter for every row that is not of the commonest kind; of two equally common ones, the first stays."""
        counts = Counter(values.values())
        if len(counts) < 2:
            return {}
        usual = counts.most_common(1)[0][0]
        given: dict[str, str] = {}
        for value in values.values():
            if value != usual and value not in given:
                given[value] = _letter(len(self.notes))
                self.notes.append(f"[{given[value]}] {name}: {value}; rows without this mark: {usual}.")
        return {i: given[value] for i, value in values.items() if value in given}


def _letter(index: int) -> str:
    return chr(ord("a") + index) if index < 26 else f"{_letter(index // 26 - 1)}{_letter(index % 26)}"


def _data(setting: Setting) -> str:
    data = setting.config.data
    decided = {path: value for path, value in PRESETS[setting.config.fidelity].items() if path.startswith("data.")}
    content: dict[str, Any] = data.content()
    name = content.pop("name")
    for path, usual in decided.items():  # what the preset says has its own footnote; other values stand here
        field = path.removeprefix("data.")
        content.pop(field, None)
        if getattr(data, field) != usual:
            content[field] = getattr(data, field)
    fields = [f"{key} {value}" for key, value in sorted(content.items()) if not isinstance(value, dict)]
    return f"{name} ({', '.join(fields)})"


def _protocol(setting: Setting, metric: str) -> str:
    kinds = {row.protocol for row in setting.measured(metric).values()}
    return " or ".join(
        ", ".join(f"{_PROTOCOL_WORDS.get(key, key)} {value}" for key, value in kind) or "protocol not recorded"
        for kind in sorted(kinds)
    )
