"""Where pairs come from, each source declared once: hub id, splits, subsets, how a row is read, size.

Another dataset with a name of its own is one more entry of `SOURCES`. Files, directories and hub datasets are sources
without one, told apart by how they are written.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rcray.config.wheels import Wheel

FILE_SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".parquet", ".csv")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

#: columns: prompt, chosen, rejected, as `data.columns` names them; messages: two lists that share their prompt;
#: transcripts: the same as one text each, as Anthropic writes them.
RowFormat = Literal["columns", "messages", "transcripts"]


@dataclass(frozen=True)
class Source:
    """One source of pairs.

    Counts of pairs are those of the published splits. Token means of real data are assumptions: with them and the GPU
    of sweep/cost.py the two QLoRA models come out within 25% of the paper's runtime table. The synthetic is measured.
    """

    name: str
    title: str = ""
    known: bool = True  # by this name; else the name is a path or a hub id
    hub_id: str | None = None
    wheel: Wheel | None = None  # a package that holds it; data/alpacaeval.py reads the pairs out of it
    rows: RowFormat = "columns"
    defaults: Mapping[str, Any] = field(default_factory=dict)  # fields of `data:` where the experiment is silent
    #: Fields that mean nothing for it: refused, because whoever wrote them expects an effect.
    refused: tuple[str, ...] = ()
    parts: Mapping[str, int] = field(default_factory=dict)  # folders of the repository: pairs of their training rows
    whole: str | None = None  # the subset of all parts, in turns
    pairs: int | None = None  # of the training rows, where there are no parts
    tokens: float = 450.0  # of a prompt with one answer, on average
    tiny: str = "synthetic"  # the embedded pairs that `--tiny` takes in its place
    longest: int | None = None  # tokens that no prompt with its answer exceeds; None: data.max_length

    @property
    def subsets(self) -> tuple[str, ...]:
        """What `data.subset` may be; empty where it is a hub configuration, or nothing."""
        return (*self.parts, self.whole) if self.whole else ()

    def parts_of(self, subset: str | None) -> tuple[str | None, ...]:
        """Where a subset is read from."""
        return tuple(self.parts) if subset and subset == self.whole else (subset,)

    def pairs_of(self, subset: str | None) -> int | None:
        """Pairs of the training rows, where they can be told without reading them."""
        return sum(self.parts[str(part)] for part in self.parts_of(subset)) if self.parts else self.pairs


SOURCES: Mapping[str, Source] = {
    source.name: source
    for source in (
        Source(
            "synthetic",
            defaults={"train_pairs": 1600},
            refused=("subset", "split", "eval_split", "columns", "revision", "path"),
            tokens=21.0,
            longest=32,
        ),
        Source(
            "ultrafeedback",
            "UltraFeedback",
            hub_id="HuggingFaceH4/ultrafeedback_binarized",
            rows="messages",
            defaults={"split": "train_prefs", "eval_split": "test_prefs"},
            refused=("subset", "columns"),
            pairs=61_135,
        ),
        Source(
            "hh",
            "HH",
            hub_id="Anthropic/hh-rlhf",
            rows="transcripts",
            defaults={"subset": "merged", "split": "train", "eval_split": "test"},
            refused=("columns",),
            parts={"helpful-base": 43_835, "harmless-base": 42_537},
            whole="merged",
            tokens=200.0,
        ),
        Source(
            "alpacaeval-pairs",
            "AlpacaEval pairs",
            wheel=Wheel(
                "alpaca-eval",
                "0.1.7",  # the only release with data
                "38d389bc0281cceb726df8ac110e3ee86149a979021dfa20f7b25a629443f4fd",
                "code Apache-2.0, data CC BY-NC 4.0: not for commercial use",
            ),
            defaults={"split": "train", "eval_split": "test"},
            refused=("subset", "columns", "revision"),
            pairs=8_357,
            tokens=230.0,
        ),
        Source("file", known=False, refused=("subset", "split", "eval_split", "revision", "path")),
        Source("directory", known=False, defaults={"split": "train"}, refused=("revision", "path")),
        Source("hub", known=False, defaults={"split": "train"}),
    )
}


def known_datasets() -> tuple[str, ...]:
    """Names that stand for a dataset."""
    return tuple(name for name, source in SOURCES.items() if source.known)


def subsets_text() -> str:
    """What `data.subset` may be, dataset by dataset."""
    chosen = {name: source.subsets for name, source in SOURCES.items() if source.subsets}
    return "; ".join(f"{name}: {', '.join(subsets[:-1])} or {subsets[-1]}" for name, subsets in chosen.items())


def source_of(name: str) -> Source:
    """A known dataset, or `file`, `directory`, `hub`, by how the name is written; nothing on disk is looked at."""
    if name in SOURCES and SOURCES[name].known:
        return SOURCES[name]
    if name.endswith(FILE_SUFFIXES):
        return SOURCES["file"]
    return SOURCES["hub" if _HUB_ID.fullmatch(name) else "directory"]
