"""Models, pairs and optimizer steps that several benchmarks share."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM, MistralConfig, MistralForCausalLM

from rcray.calibration import Calibrator, calibrate, score_parameters
from rcray.calibration.scores import Estimator
from rcray.calibration.update import UpdateCalibrator
from rcray.data.batch import Batch, collate
from rcray.data.encode import EncodedPair
from rcray.data.layout import CHOSEN, REJECTED, packed, two_rows
from rcray.models.capabilities import capabilities_of
from rcray.models.forward import answer_logps
from rcray.models.likelihood import side_logps
from rcray.models.reference import ReferenceLogps
from rcray.objectives import PairLogps, objective
from rcray.train.look import Fresh, Looks
from rcray.train.micro import Policy
from rcray.train.parts import score_source
from rcray.train.step import Scoring, StepState, Update, optimizer_step

LORA_RANK = 16


@dataclass(frozen=True)
class Size:
    """A model's size. `hundred_million` has as many blocks as Pythia-410M and its vocabulary."""

    vocabulary: int
    hidden: int
    layers: int
    heads: int

    def config(self) -> dict[str, int]:
        """As transformers names it."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.hidden,
            "max_position_embeddings": 4096,
        }


TINY = Size(8192, 128, 8, 4)
TWENTY_MILLION = Size(8192, 320, 12, 4)  # the head has the share of its matrices that it has in Pythia-410M: 15%
HUNDRED_MILLION = Size(50304, 512, 24, 8)


def build(size: Size, method: str, seed: int = 0) -> Any:
    """GPT-NeoX for full fine-tuning, Mistral with LoRA on all linear layers; random weights."""
    torch.manual_seed(seed)
    if method == "full":
        return GPTNeoXForCausalLM(GPTNeoXConfig(**size.config()))
    from peft import LoraConfig, get_peft_model

    options = {"num_key_value_heads": size.heads // 2, "sliding_window": None, "tie_word_embeddings": False}
    base = MistralForCausalLM(MistralConfig(**size.config(), **options))
    model = get_peft_model(base, LoraConfig(r=LORA_RANK, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear"))
    for name, p in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(p, std=0.02)
    return model


def random_pairs(vocabulary: int, pairs: int, prompt: int, answer: int) -> list[EncodedPair]:
    """Pairs of exactly these lengths."""
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, vocabulary, (count,), generator=generator).tolist())

    return [EncodedPair(str(i), tokens(prompt), tokens(answer), tokens(answer)) for i in range(pairs)]


@dataclass
class Setting:
    """One model, one batch, and the steps to compare on them."""

    method: str
    size: Size
    encoded: list[EncodedPair]
    batch: Batch
    sharing: str
    reference: ReferenceLogps
    base: Any
    micro: int  # pairs of a micro-batch; for the steps of ours() and by_update(), and for plain()

    @classmethod
    def of(
        cls, method: str, size: Size, *, pairs: int, prompt: int, answer: int, sharing: str, micro: int | None = None
    ) -> "Setting":
        """A fresh model and random pairs of these lengths; a step is one micro-batch unless told otherwise."""
        base = build(size, method)
        encoded = random_pairs(size.vocabulary, pairs, prompt, answer)
        batch = collate(encoded, range(pairs))
        with torch.no_grad():
            sums = [side_logps(base, side).sums.double() for side in (batch.chosen, batch.rejected)]
        counts = torch.full((pairs,), float(answer), dtype=torch.float64)
        reference = ReferenceLogps(*sums, counts, counts)
        return cls(method, size, encoded, batch, sharing, reference, base, micro or pairs)

    @property
    def pairs(self) -> int:
        """Pairs in the batch."""
        return len(self.batch.index)

    @cached_property
    def batches(self) -> list[Batch]:
        """Its micro-batches."""
        return [collate(self.encoded, range(i, i + self.micro)) for i in range(0, self.pairs, self.micro)]

    def state(self, *, calibrated: bool, estimator: Estimator | None = None) -> StepState:
        """The state of a training step on a copy of the model."""
        model = copy.deepcopy(self.base)
        chosen: Estimator = estimator or ("head" if self.method == "full" else "adapters")
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, 1e-6, weight_decay=0.0)  # as TrainConfig has it
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        return StepState(
            policy=Policy(
                model=model,
                objective=objective("dpo"),
                likelihood="sum",
                reference=self.reference,
                share_prompts=self.sharing,  # type: ignore[arg-type]
                short_mlp=capabilities_of(model).short_mlp,
            ),
            scoring=Scoring(per_micro_batch=True, source=score_source(model, chosen)),
            update=Update(optimizer, schedule, batch_size=self.pairs, clip_norm=1.0),
            calibrator=Calibrator() if calibrated else None,
        )

    def ours(self, *, calibrated: bool, estimator: Estimator | None = None) -> Callable[[], object]:
        """rcray's own optimizer step."""
        state = self.state(calibrated=calibrated, estimator=estimator)
        return lambda: optimizer_step(state, self.batches, 1)

    def by_update(self, *, look_pairs: int) -> tuple[Callable[[], object], Callable[[], object]]:
        """The step of the calibration by the update, between two looks and with one."""
        state = self.state(calibrated=False)
        state.calibrator = UpdateCalibrator()
        state.looks = Looks(state.policy, state.update.optimizer, state.update.clip_norm)
        portion = min(look_pairs, self.micro)
        shown = [collate(self.encoded, range(i, i + portion)) for i in range(0, look_pairs, portion)]
        fresh = Fresh(shown, look_pairs, torch.zeros(2, look_pairs))
        return (
            lambda: optimizer_step(state, self.batches, 1),
            lambda: optimizer_step(state, self.batches, 1, fresh),
        )

    def plain(self) -> Callable[[], object]:
        """The textbook on rcray's likelihoods: mean loss, backward, clip, update; no band, no scores."""
        state = self.state(calibrated=False)
        policy = state.policy
        layouts = [(packed if self.sharing == "on" else two_rows)(batch) for batch in self.batches]

        def run() -> None:
            state.update.optimizer.zero_grad()
            for batch, layout in zip(self.batches, layouts, strict=True):
                logp, _ = answer_logps(policy.model, layout, mlp=policy.short_mlp)
                z_w, z_l = (layout.matrix(logp, side).sum(-1) for side in (CHOSEN, REJECTED))
                (policy.objective.loss(self._pairs(z_w, z_l, batch.index)).sum() / self.pairs).backward()
            clip_and_step(state)

        return run

    def logits(self, *, calibrated: bool) -> Callable[[], object]:
        """As published: logits of every token, both sides in one graph; calibrated by two extra gradients on it."""
        state = self.state(calibrated=calibrated)
        parameters = score_parameters(state.policy.model, "head" if self.method == "full" else "adapters")
        both = torch.cat([self.batch.chosen.ids, self.batch.rejected.ids])
        response = torch.cat([self.batch.chosen.response, self.batch.rejected.response])[:, 1:]

        def run() -> None:
            scores = state.policy.model(input_ids=both, use_cache=False).logits[:, :-1].float()
            picked = scores.log_softmax(-1).gather(-1, both[:, 1:, None]).squeeze(-1)
            z_w, z_l = (picked * response).sum(-1).split(self.pairs)
            pairs = self._pairs(z_w, z_l)
            if calibrated:
                loss = calibrate(
                    state.policy.objective, z_w, z_l, parameters=parameters, calibrator=state.calibrator, pairs=pairs
                ).loss
            else:
                loss = state.policy.objective.loss(pairs)
            state.update.optimizer.zero_grad()
            loss.mean().backward()
            clip_and_step(state)

        return run

    def _pairs(self, z_w: Tensor, z_l: Tensor, index: Tensor | slice = slice(None)) -> PairLogps:
        n_w, n_l, sum_w, sum_l = (getattr(self.reference, name)[index] for name in ("n_w", "n_l", "sum_w", "sum_l"))
        return PairLogps(z_w, z_l, n_w, n_l, sum_w.float(), sum_l.float())


def clip_and_step(state: StepState) -> None:
    """What follows a backward."""
    torch.nn.utils.clip_grad_norm_(state.update.parameters, 1.0)
    state.update.optimizer.step()
