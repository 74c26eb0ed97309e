"""Shared by the unit tests: the tiny models loaded, and tokenizers made on the spot."""

from collections.abc import Callable
from typing import Any

import pytest

from rcray.config.model import ModelConfig
from rcray.models.load import LoadedModel, load_model

TAGGED = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture
def neox(model_cache) -> LoadedModel:
    """tiny-neox, fresh for every test: a test may change its weights."""
    return load_model(ModelConfig(name="tiny-neox"), model_cache)


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., Any]:
    """Trains a byte-level BPE tokenizer on `corpus`, with a chat template; `eos` is also the pad token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    def make(template: str = TAGGED, corpus: tuple[str, ...] = (), *, split_words: bool = True) -> Any:
        core = Tokenizer(models.BPE())
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split_words)
        core.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|end|>", "<|system|>", "<|user|>", "<|assistant|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        core.train_from_iterator(corpus, trainer)
        return PreTrainedTokenizerFast(
            tokenizer_object=core, eos_token="<|end|>", pad_token="<|end|>", chat_template=template
        )

    return make
