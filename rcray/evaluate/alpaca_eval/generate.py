"""Answers of a model to instructions: chat template, greedy or sampled, batches of similar length."""

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from rcray.config.alpaca_eval import GenerationConfig
from rcray.errors import DataError, DegenerateRunError
from rcray.evaluate.alpaca_eval.outputs import Output
from rcray.evaluate.degenerate import EMPTY_SHARE, LEAST_ANSWERS, model_fault


def generate_answers(
    model: Any,
    tokenizer: Any,
    instructions: Sequence[str],
    settings: GenerationConfig,
    *,
    generator: str,
) -> list[Output]:
    """One answer per instruction, in their order; the random generators are left as they were.

    Raises:
        DegenerateRunError: the model's logits are not finite, or it says nothing.
    """
    fault = model_fault(model, tokenizer)
    if fault:
        raise DegenerateRunError(f"{generator}: {fault}")
    prompts = [_prompt(tokenizer, text) for text in instructions]
    answered = continuations(model, tokenizer, prompts, settings)
    answers = [tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in answered]
    empty = sum(not answer for answer in answers)
    if len(answers) >= LEAST_ANSWERS and empty >= EMPTY_SHARE * len(answers):
        raise DegenerateRunError(f"{generator}: {empty} of {len(answers)} answers are empty")
    return [Output(text, answers[i], generator) for i, text in enumerate(instructions)]


def continuations(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[int]],
    settings: GenerationConfig,
    on_batch: Callable[[int], None] | None = None,
) -> list[list[int]]:
    """What the model says after each prompt, up to the end of its turn; the random generators are left as they were."""
    import torch

    from rcray.models.device import generators

    room = getattr(model.config, "max_position_embeddings", None)
    for number, ids in enumerate(prompts, 1):
        if room is not None and len(ids) >= room:
            raise DataError(f"instruction {number} has {len(ids)} tokens, and the model's context is {room}")
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))  # the longest first: memory fails at once
    tokens: dict[int, list[int]] = {}
    with torch.random.fork_rng(devices=generators(model.device)), torch.no_grad():
        torch.manual_seed(settings.seed)
        for start in range(0, len(order), settings.batch_size):
            rows = order[start : start + settings.batch_size]
            tokens.update(
                zip(rows, _continue(model, tokenizer, [prompts[i] for i in rows], settings, room), strict=True)
            )
            if on_batch:
                on_batch(len(tokens))
    return [tokens[i] for i in range(len(prompts))]


def _prompt(tokenizer: Any, instruction: str) -> list[int]:
    turns = [{"role": "user", "content": instruction}]
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


def _continue(
    model: Any, tokenizer: Any, prompts: Sequence[list[int]], settings: GenerationConfig, room: int | None
) -> list[list[int]]:
    import torch

    width = max(map(len, prompts))
    filler = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    ids = torch.full((len(prompts), width), filler)
    mask = torch.zeros_like(ids)
    for i, prompt in enumerate(prompts):  # padding on the left: every answer starts at the same column
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1
    sampled = {"do_sample": True, "temperature": settings.temperature, "top_p": settings.top_p, "top_k": 0}
    most = settings.max_new_tokens if room is None else min(settings.max_new_tokens, room - width)
    tokens = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=most,
        pad_token_id=filler,
        eos_token_id=tokenizer.eos_token_id,
        **(sampled if settings.temperature > 0 else {"do_sample": False}),
    )
    ends = {filler, tokenizer.eos_token_id}
    return [list(itertools.takewhile(lambda token: token not in ends, row)) for row in tokens[:, width:].tolist()]
