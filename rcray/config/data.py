"""Which preference pairs a run sees.

`name` is `synthetic`, `ultrafeedback`, `hh`, a hub dataset (owner/name), a directory (./pairs) or a file
(pairs.jsonl). What a source decides by itself is filled in here, so that a run's identity has it spelled out.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from rcray.config.section import Section
from rcray.errors import did_you_mean

BUILT_IN = ("synthetic", "ultrafeedback", "hh")
FILE_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet", ".csv")
HH_SUBSETS = ("helpful-base", "harmless-base", "merged")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

#: What a source says where the experiment file is silent.
SOURCE_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "synthetic": {"train_pairs": 1600},
    "ultrafeedback": {"split": "train_prefs", "eval_split": "test_prefs"},
    "hh": {"subset": "merged", "split": "train", "eval_split": "test"},
    "file": {},
    "directory": {"split": "train"},
    "hub": {"split": "train"},
}

#: Fields that mean nothing for a source: refused, because whoever wrote them expects an effect.
NOT_FOR: Mapping[str, tuple[str, ...]] = {
    "synthetic": ("subset", "split", "eval_split", "columns", "revision", "path"),
    "ultrafeedback": ("subset", "columns"),
    "hh": ("columns",),
    "file": ("subset", "split", "eval_split", "revision", "path"),
    "directory": ("revision", "path"),
    "hub": (),
}


def source_kind(name: str) -> str:
    """A built-in name, or `file`, `directory`, `hub`, by how the name is written; nothing on disk is looked at."""
    if name in BUILT_IN:
        return name
    if name.endswith(FILE_SUFFIXES):
        return "file"
    return "hub" if _HUB_ID.fullmatch(name) else "directory"


class Columns(Section):
    """Where prompt and answers stand in a dataset of one's own."""

    prompt: str = Field("prompt", description="may be absent where both answers are message lists with a shared start")
    chosen: str = "chosen"
    rejected: str = "rejected"


class DataConfig(Section):
    """Which preference pairs, and how long they may be."""

    name: str = Field("synthetic", min_length=1, description="built-in name, hub dataset, directory or file")
    subset: str | None = Field(None, description="hh: helpful-base, harmless-base or merged; else a hub configuration")
    split: str | None = Field(None, description="rows to train on")
    eval_split: str | None = Field(None, description="held-out rows; without one a seeded share of `split` is kept out")
    columns: Columns = Field(default_factory=Columns)
    revision: str | None = Field(None, description="commit, tag or branch of a hub dataset")
    path: str | None = Field(None, description="a local copy of the named dataset; not part of a run's identity")
    bad_rows: Literal["drop", "fail"] = Field("drop", description="drop: count and name them; fail: stop at the first")
    difficulty: Literal["easy", "medium", "hard"] = Field(
        "medium", description="synthetic: how many words of the rejected answer are wrong; elsewhere without effect"
    )
    train_pairs: int | None = Field(None, ge=1, description="the first usable pairs of `split`; null: all of them")
    eval_pairs: int = Field(128, ge=2, description="held-out pairs for the preference metrics and the probe")
    seed: int = Field(0, ge=0, description="of the generator, or of the rows held out; not the training seed")
    max_length: int = Field(1024, ge=8, description="tokens of prompt and response together")
    max_prompt_length: int = Field(512, ge=4, description="the prompt keeps its end")
    bucketing: Literal["none", "length"] = Field("none", description="length: batches of pairs of similar length")

    @model_validator(mode="before")
    @classmethod
    def _fill_from_source(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {**SOURCE_DEFAULTS[source_kind(str(given.get("name", "synthetic")))], **given}

    @field_validator("train_pairs", mode="before")
    @classmethod
    def _pairs_are_a_number(cls, value: Any) -> Any:
        if isinstance(value, bool):
            raise ValueError(f"{str(value).lower()} is not a number")
        return value

    @field_validator("name")
    @classmethod
    def _name_is_known(cls, name: str) -> str:
        if "/" in name or source_kind(name) != "directory":
            return name
        raise ValueError(
            f"unknown dataset {name!r}{did_you_mean(name.lower(), BUILT_IN)}; "
            f"a directory is written './{name}', a file with its suffix, a hub dataset 'owner/name'"
        )

    @model_validator(mode="after")
    def _fields_fit_the_source(self) -> "DataConfig":
        kind = source_kind(self.name)
        for field in NOT_FOR[kind]:
            if getattr(self, field) not in (None, Columns()):
                raise ValueError(f"{field} has no meaning for {self.name!r}; delete it")
        if kind == "synthetic" and self.train_pairs is None:
            raise ValueError("train_pairs null means all pairs, and synthetic pairs have no end; give a number")
        if kind == "hh" and self.subset not in HH_SUBSETS:
            raise ValueError(f"subset {self.subset!r} is not one of hh{did_you_mean(str(self.subset), HH_SUBSETS)}")
        if self.split is None and SOURCE_DEFAULTS[kind].get("split"):
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

    def content(self) -> dict[str, Any]:
        """What decides the pairs and their order: fields without effect on this source are left out."""
        content = self.model_dump(mode="json", exclude={"path"}, exclude_none=True)
        kind = source_kind(self.name)
        without_effect = {"bad_rows"} if kind == "synthetic" else {"difficulty"}
        if "columns" in NOT_FOR[kind]:
            without_effect.add("columns")
        if self.eval_split is not None:
            without_effect.add("seed")  # it draws the held-out rows, and here they are given
        if self.bucketing == "none":
            without_effect.add("bucketing")
        return {name: value for name, value in content.items() if name not in without_effect}
