"""The embedded default models: real architectures, small, warmed up locally, cached by recipe.

`tiny-neox`, `tiny-mistral` and `tiny-qwen2` are GPT-NeoX (Pythia), Mistral and Qwen2 at about 0.1M parameters, with
a byte-level BPE tokenizer trained on the synthetic language and a short SFT on it. They are saved and loaded as any
other model directory, so the whole pipeline runs without a hub.
"""

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from rcray.config import content_key
from rcray.config.models import MODELS, Embedded
from rcray.config.shape import Shape
from rcray.data import synthetic
from rcray.data.encode import render
from rcray.files import broken_seal, build_once, publish_directory, seal
from rcray.models.sources import save_whole

log = logging.getLogger(__name__)

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] | trim }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
END, PAD = "<|end|>", "<|pad|>"


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a tiny model; its hash names the cached directory."""

    architecture: str
    hidden_size: int
    layers: int
    heads: int
    vocab_size: int = 512
    context: int = 256
    warm_up_steps: int = 160
    warm_up_batch: int = 32
    warm_up_rate: float = 1e-3
    seed: int = 0
    version: int = 1  # raised when the code below changes what it builds


def _recipe(name: str, shape: Shape, embedded: Embedded) -> Recipe:
    return Recipe(name, shape.hidden, shape.layers, shape.heads, version=embedded.version)


TINY_MODELS = {name: _recipe(name, model.shape, model.embedded) for name, model in MODELS.items() if model.embedded}


def tiny_model_dir(name: str, cache: Path) -> Path:
    """The directory of a tiny model; built on first use, by one process, and published whole."""
    recipe = TINY_MODELS[name]
    target = cache / "models" / f"{name}-{content_key(asdict(recipe))}"

    def build(directory: Path) -> None:
        _build(recipe, directory)
        seal(directory)

    if broken_seal(target):
        with FileLock(f"{target}.lock"):
            if damage := broken_seal(target):  # else another process was faster
                log.warning("%s: %s; building it again", target, damage)
                publish_directory(target, build)
    return build_once(target, build)


def _build(recipe: Recipe, target: Path) -> None:
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    tokenizer = _train_tokenizer(recipe)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        model = _new_model(recipe, tokenizer)
        _warm_up(model, tokenizer, recipe)
    save_whole(model, target)
    tokenizer.save_pretrained(target)


def _train_tokenizer(recipe: Recipe) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=recipe.vocab_size,
        special_tokens=[PAD, END, "<|system|>", "<|user|>", "<|assistant|>", *_declared(recipe).special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = (text for pair in synthetic.warm_up_texts(2000, recipe.seed) for text in pair)
    core.train_from_iterator(corpus, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=recipe.context,
    )


def _new_model(recipe: Recipe, tokenizer: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    declared = _declared(recipe)
    config = AutoConfig.for_model(
        declared.model_type,
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        intermediate_size=4 * recipe.hidden_size,
        max_position_embeddings=recipe.context,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        **declared.settings,
    )
    return AutoModelForCausalLM.from_config(config)


def _declared(recipe: Recipe) -> Embedded:
    declared = MODELS[recipe.architecture].embedded
    assert declared is not None
    return declared


def _warm_up(model: Any, tokenizer: Any, recipe: Recipe) -> None:
    """A short SFT on right and flawed answers of the synthetic language."""
    texts = list(synthetic.warm_up_texts(recipe.warm_up_steps * recipe.warm_up_batch, recipe.seed))
    optimizer = torch.optim.AdamW(model.parameters(), recipe.warm_up_rate)
    model.train()
    for step in range(recipe.warm_up_steps):
        rows = texts[step * recipe.warm_up_batch : (step + 1) * recipe.warm_up_batch]
        encoded = [(len(render(tokenizer, prompt)), render(tokenizer, prompt, answer)) for prompt, answer in rows]
        width = max(len(ids) for _, ids in encoded)
        ids = torch.full((len(rows), width), tokenizer.pad_token_id)
        labels = torch.full((len(rows), width), -100)
        for i, (start, row) in enumerate(encoded):
            ids[i, : len(row)] = torch.tensor(row)
            labels[i, start : len(row)] = torch.tensor(row[start:])
        loss = model(input_ids=ids, attention_mask=(ids != tokenizer.pad_token_id).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
