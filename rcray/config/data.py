"""The section `data:`: which preference pairs a run sees.

`name` is one of config/datasets.py, a hub dataset (owner/name), a directory (./pairs) or a file (pairs.jsonl). What a
source decides by itself is filled in here, so that a run's identity has it spelled out.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rcray.config.datasets import known_datasets, source_of, subsets_text
from rcray.config.section import Section
from rcray.errors import did_you_mean

#: Fields that came later: at their defaults they say nothing, so that older runs keep their identity.
_LATER_FIELDS: Mapping[str, Any] = {
    "add_bos": False,
    "empty_system": False,
    "score_header": False,
    "answer_room": "rest",
    "format": "pairs",
}
_LATER_COLUMNS: Mapping[str, str] = {"completion": "completion", "label": "label"}


class Columns(Section):
    """Where prompt and answers stand in a dataset of one's own."""

    prompt: str = Field("prompt", description="may be absent where both answers are message lists with a shared start")
    chosen: str = Field("chosen", description="column of the preferred answer")
    rejected: str = Field("rejected", description="column of the other one")
    completion: str = Field("completion", description="format unpaired: the answer")
    label: str = Field("label", description="format unpaired: whether the answer is wanted, true or false")


class DataConfig(Section):
    """Which preference pairs, and how long they may be."""

    name: str = Field("synthetic", min_length=1, description="built-in name, hub dataset, directory or file")
    subset: str | None = Field(None, description=f"{subsets_text()}; else a hub configuration")
    split: str | None = Field(None, description="rows to train on")
    eval_split: str | None = Field(None, description="held-out rows; without one a seeded share of `split` is kept out")
    format: Literal["pairs", "unpaired"] = Field(
        "pairs",
        description="unpaired: rows of one answer with a label (prompt, completion, label), for objectives that are a "
        "sum of one term per side",
    )
    columns: Columns = Field(default_factory=Columns)
    revision: str | None = Field(None, description="commit, tag or branch of a hub dataset")
    path: str | None = Field(None, description="a local copy of the named dataset; not part of a run's identity")
    exclude_rows: tuple[int, ...] | None = Field(
        None,
        description="training rows to leave out: their numbers, counting from 0 in the order of the source, or a file "
        "of them as `rcray diagnose --write-filter` writes it; held-out rows stay as they are",
    )
    bad_rows: Literal["drop", "fail"] = Field("drop", description="drop: count and name them; fail: stop at the first")
    difficulty: Literal["easy", "medium", "hard"] = Field(
        "medium", description="synthetic: how many words of the rejected answer are wrong; elsewhere without effect"
    )
    train_pairs: int | None = Field(
        None, ge=1, description="usable pairs of `split` to train on, drawn by `seed`; null: all of them"
    )
    eval_pairs: int = Field(
        128, ge=2, description="held-out pairs for the preference metrics and the probe; without eval_split at most 10%"
    )
    seed: int = Field(0, ge=0, description="of the generator, of the rows drawn and held out; not the training seed")
    max_length: int = Field(1024, ge=8, description="tokens of prompt and response together")
    max_prompt_length: int = Field(512, ge=4, description="the prompt keeps its end")
    add_bos: bool = Field(False, description="put the tokenizer's BOS before a prompt whose template renders none")
    empty_system: bool = Field(
        False, description="put an empty system turn before a dialogue without one, where the template takes it"
    )
    score_header: bool = Field(
        False, description="score the template's invitation to answer, such as <|assistant|>, as part of the answer"
    )
    answer_room: Literal["rest", "fixed"] = Field(
        "rest",
        description="of a pair that is too long; rest: what the prompt leaves of max_length; fixed: max_length - "
        "max_prompt_length, however short the prompt",
    )
    too_long: Literal["truncate", "drop"] = Field(
        "truncate", description="rows beyond max_length: cut to it, or left out (whole answers only), and counted"
    )
    bucketing: Literal["none", "length"] = Field("none", description="length: batches of pairs of similar length")

    @model_validator(mode="before")
    @classmethod
    def _fill_from_source(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {**source_of(str(given.get("name", "synthetic"))).defaults, **given}

    @field_validator("exclude_rows", mode="before")
    @classmethod
    def _rows_may_lie_in_a_file(cls, given: Any) -> Any:
        """The numbers themselves, so that a run has them wherever it is carried out."""
        if isinstance(given, str):
            given = _read_numbers(given)
        if not isinstance(given, list | tuple):
            return given
        if wrong := [n for n in given if isinstance(n, bool) or not isinstance(n, int) or n < 0]:
            raise ValueError(f"{wrong[0]!r} is not the number of a row: 0, 1, 2, ...")
        return tuple(sorted(set(given))) or None

    @field_validator("name")
    @classmethod
    def _name_is_known(cls, name: str) -> str:
        if "/" in name or source_of(name).name != "directory":
            return name
        raise ValueError(
            f"unknown dataset {name!r}{did_you_mean(name.lower(), known_datasets())}; "
            f"a directory is written './{name}', a file with its suffix, a hub dataset 'owner/name'"
        )

    @model_validator(mode="after")
    def _fields_fit_the_source(self) -> "DataConfig":
        source = source_of(self.name)
        for field in source.refused:
            if getattr(self, field) not in (None, Columns()):
                raise ValueError(f"{field} has no meaning for {self.name!r}; delete it")
        if self.format == "unpaired" and source.known:
            raise ValueError(f"format 'unpaired' has no meaning for {self.name!r}, whose rows are pairs; delete it")
        if source.name == "synthetic" and self.train_pairs is None:
            raise ValueError("train_pairs null means all pairs, and synthetic pairs have no end; give a number")
        if source.subsets and self.subset not in source.subsets:
            known = did_you_mean(str(self.subset), source.subsets)
            raise ValueError(f"subset {self.subset!r} is not one of {source.name}{known}")
        if self.split is None and source.defaults.get("split"):
            raise ValueError(f"split null: say which rows of {self.name!r} to train on")
        if self.split is not None and self.split == self.eval_split:
            raise ValueError(f"eval_split {self.eval_split!r} is what is trained on; null holds a share of it out")
        return self

    @model_validator(mode="after")
    def _prompt_leaves_room(self) -> "DataConfig":
        if self.max_prompt_length >= self.max_length:
            raise ValueError(
                f"max_prompt_length {self.max_prompt_length} leaves no room for a response in "
                f"max_length {self.max_length}"
            )
        return self

    @property
    def rows_per_pair(self) -> int:
        """Rows of the source that one pair is made of."""
        return 2 if self.format == "unpaired" else 1

    @property
    def draws(self) -> bool:
        """Whether the training rows are a seeded draw from more: never of synthetic pairs, which are made to number."""
        return self.train_pairs is not None and self.name != "synthetic"

    def content(self) -> dict[str, Any]:
        """What decides the pairs and their order: fields without effect on this source are left out."""
        content = self.model_dump(mode="json", exclude={"path"}, exclude_none=True)
        source = source_of(self.name)
        without_effect = {"bad_rows"} if source.name == "synthetic" else {"difficulty"}
        if "columns" in source.refused:
            without_effect.add("columns")
        if self.eval_split is not None and not (self.draws and self.seed):
            without_effect.add("seed")  # it draws the held-out rows, and here they are given
        if self.too_long == "truncate":
            without_effect.add("too_long")
        if self.bucketing == "none":
            without_effect.add("bucketing")
        if self.exclude_rows:
            digest = hashlib.sha256(repr(self.exclude_rows).encode()).hexdigest()[:12]
            content["exclude_rows"] = f"{len(self.exclude_rows)} rows, {digest}"
        without_effect |= {name for name, usual in _LATER_FIELDS.items() if content[name] == usual}
        content["columns"] = {n: at for n, at in content["columns"].items() if _LATER_COLUMNS.get(n) != at}
        return {name: value for name, value in content.items() if name not in without_effect}


def _read_numbers(name: str) -> list[int]:
    """One row number a line; what follows a # says why it is there."""
    try:
        lines = Path(name).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text file"
        raise ValueError(f"{name}: cannot be read: {reason}; give a file with a row number a line, or a list") from None
    numbers = []
    for number, line in enumerate(lines, start=1):
        text = line.partition("#")[0].strip()
        if text and not (text.isascii() and text.isdigit()):
            raise ValueError(f"{name}:{number}: {text[:40]!r} is not the number of a row")
        if text:
            numbers.append(int(text))
    return numbers
