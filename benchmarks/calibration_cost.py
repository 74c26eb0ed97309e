"""What band diagnostics and calibration add to an optimizer step, full fine-tuning.

plain            rcray's likelihoods (chunked head on answer tokens), loss.mean().backward(), clip, AdamW step
ours, off        rcray's step: incentives, head scores and the band recorded, nothing rescaled
ours, RC         the same with calibration per micro-batch
logits           both sides in one graph with logits of every token, as published, without calibration
logits, RC       the published way: two extra autograd.grad calls on that graph, then the calibrated backward

What calibration costs is `ours, RC` over `plain`, and for the published way `logits, RC` over `logits`.
"""

import copy

import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

from benchmarks.interleaved import arguments, measure, report
from rcray.calibration import Calibrator, calibrate, score_parameters
from rcray.calibration.incentives import OneWorker
from rcray.data.batch import Batch, collate
from rcray.data.encode import EncodedPair
from rcray.models.likelihood import side_logps
from rcray.models.reference import ReferenceLogps
from rcray.objectives import PairLogps, objective
from rcray.train.step import StepState, optimizer_step

PAIRS = 4


def make_batch(vocabulary: int, prompt: int, answer: int) -> Batch:
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, vocabulary, (count,), generator=generator).tolist())

    rows = [EncodedPair(str(i), tokens(prompt), tokens(answer), tokens(answer)) for i in range(PAIRS)]
    return collate(rows, range(PAIRS))


def main() -> None:
    quick = arguments(__doc__).quick
    vocabulary, hidden, layers, length = (4096, 128, 2, 32) if quick else (16384, 256, 4, 96)
    torch.manual_seed(0)
    config = GPTNeoXConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * hidden,
    )
    base = GPTNeoXForCausalLM(config)
    batch = make_batch(vocabulary, length, length)
    dpo = objective("dpo")
    with torch.no_grad():
        sums = [side_logps(base, side).sums.double() for side in (batch.chosen, batch.rejected)]
    counts = torch.full((PAIRS,), float(length), dtype=torch.float64)
    reference = ReferenceLogps(sums[0], sums[1], counts, counts)

    def step_state(calibrated: bool) -> StepState:
        model = copy.deepcopy(base)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-6)
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 1.0)
        calibrator = Calibrator() if calibrated else None
        head = score_parameters(model, "head")
        return StepState(
            model, dpo, "sum", calibrator, True, head, optimizer, scheduler, 1.0, PAIRS, OneWorker(), reference
        )

    plain, off, on, logits, published = (step_state(flag) for flag in (False, False, True, False, True))

    def update(state: StepState, loss: torch.Tensor) -> None:
        state.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(state.parameters, 1.0)
        state.optimizer.step()

    def pairs_of(z_w: torch.Tensor, z_l: torch.Tensor) -> PairLogps:
        return PairLogps(z_w, z_l, counts, counts, sums[0].float(), sums[1].float())

    def run_plain() -> None:
        z_w, z_l = (side_logps(plain.model, side).sums for side in (batch.chosen, batch.rejected))
        update(plain, dpo.loss(pairs_of(z_w, z_l)).mean())

    def from_logits(state: StepState) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.cat([batch.chosen.ids, batch.rejected.ids])
        scores = state.model(input_ids=both, use_cache=False).logits[:, :-1].float()
        picked = scores.log_softmax(-1).gather(-1, both[:, 1:, None]).squeeze(-1)
        response = torch.cat([batch.chosen.response, batch.rejected.response])[:, 1:]
        z_w, z_l = (picked * response).sum(-1).split(PAIRS)
        return z_w, z_l

    def run_logits() -> None:
        update(logits, dpo.loss(pairs_of(*from_logits(logits))).mean())

    def run_published() -> None:
        z_w, z_l = from_logits(published)
        parameters = list(published.score_parameters)
        made = calibrate(
            dpo, z_w, z_l, parameters=parameters, calibrator=published.calibrator, pairs=pairs_of(z_w, z_l)
        )
        update(published, made.loss.mean())

    seconds = measure(
        {
            "plain": run_plain,
            "ours, off": lambda: optimizer_step(off, [batch], 1, 1),
            "ours, RC": lambda: optimizer_step(on, [batch], 1, 1),
            "logits": run_logits,
            "logits, RC": run_published,
        },
        rounds=3 if quick else 11,
    )
    costs = {
        "ours": round(seconds["ours, RC"] / seconds["plain"], 4),
        "published": round(seconds["logits, RC"] / seconds["logits"], 4),
    }
    print("calibrated over uncalibrated:", costs)
    sizes = {"vocabulary": vocabulary, "hidden": hidden, "layers": layers, "tokens_per_side": 2 * length}
    report("calibration_cost", seconds, "plain", calibrated_over_uncalibrated=costs, **sizes)


if __name__ == "__main__":
    main()
