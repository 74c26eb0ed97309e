"""How large a model is, without loading it: its dimensions, as data or read from a directory's config.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WIDE = 512  # hidden units from which a few hundred tokens fill a CPU's core


@dataclass(frozen=True)
class Shape:
    """The dimensions of a decoder, and what follows from them."""

    layers: int
    hidden: int
    intermediate: int
    vocabulary: int
    heads: int = 4
    key_values: float = 1.0  # key and value heads over query heads
    gated: bool = False  # three matrices in the feed-forward instead of two
    tied: bool = False  # one matrix for embeddings and head

    @property
    def linears(self) -> Mapping[str, tuple[int, int]]:
        """Inputs and outputs of every linear layer of one block, by the names adapters use."""
        h, wide = self.hidden, self.intermediate
        if not self.gated:
            return {
                "query_key_value": (h, 3 * h),
                "dense": (h, h),
                "dense_h_to_4h": (h, wide),
                "dense_4h_to_h": (wide, h),
            }
        narrow = round(h * self.key_values)
        return {
            "q_proj": (h, h),
            "k_proj": (h, narrow),
            "v_proj": (h, narrow),
            "o_proj": (h, h),
            "gate_proj": (h, wide),
            "up_proj": (h, wide),
            "down_proj": (wide, h),
        }

    @property
    def body(self) -> int:
        """Parameters of the blocks' linear layers: what is quantised, and where the arithmetic is."""
        return self.layers * sum(inputs * outputs for inputs, outputs in self.linears.values())

    @property
    def embeddings(self) -> int:
        """Parameters of embeddings and head."""
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def parameters(self) -> int:
        """All of them, less biases and norms: well under one percent."""
        return self.body + self.embeddings

    def adapters(self, r: int, targets: str | tuple[str, ...]) -> int:
        """Parameters of LoRA adapters of rank r."""
        chosen = [sizes for name, sizes in self.linears.items() if targets == "all-linear" or name in targets]
        return self.layers * r * sum(inputs + outputs for inputs, outputs in chosen)


def read_shape(directory: str) -> Shape | None:
    """The shape of a local directory's model; None where only a download would tell."""
    try:
        content = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
        return _from_transformers(content)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _from_transformers(content: Mapping[str, Any]) -> Shape:
    hidden, heads = int(content["hidden_size"]), int(content["num_attention_heads"])
    return Shape(
        layers=int(content["num_hidden_layers"]),
        hidden=hidden,
        intermediate=int(content.get("intermediate_size") or 4 * hidden),
        vocabulary=int(content["vocab_size"]),
        heads=heads,
        key_values=int(content.get("num_key_value_heads") or heads) / heads,
        gated=content.get("model_type") != "gpt_neox",
        tied=bool(content.get("tie_word_embeddings")),
    )
