"""Reward calibration and the disentanglement band for TRL's DPOTrainer, whatever its `loss_type`.

    trainer = CalibratedDPOTrainer(model, ref_model, args=config, train_dataset=pairs, calibrator=Calibrator())

TRL's own loss code runs untouched. Its derivative in the token log-probabilities gives the incentives, the output head
gives the scores, and a hook on the log-probabilities multiplies what flows back: alpha on the chosen rows, 1/alpha on
the rejected ones. The loss, and everything TRL logs, keep their values bit for bit.

Logged beside TRL's metrics (means over the logging interval, of the batches where they are defined):

    band/log_r        log of the incentive ratio r of the loss itself
    band/log_r_star   log of the band's centre r*
    band/rho          cosine of the scores
    band/log_alpha    log of the factor; 0 without a calibrator and on skipped batches
    band/slack        log-distance to the nearer edge, of the update that is made (no value where rho <= 0)
    band/in_band      share of batches whose update is inside the band
    band/skipped      share of batches without a ratio to balance
    band/clipped      share of batches whose factor was held back

Statistics are taken per micro-batch over all processes. The averages are saved in each checkpoint.

With `calibrator=UpdateSteering()` the factor is chosen by the update that the trainer's optimizer really makes. The
trainer gives it the optimizer, `max_grad_norm`, the number of steps and, where none was set, a guard of half a nat per
answer token (of the first batch); in place of the band it logs:

    update/log_alpha  log of the factor
    update/drift_w    how far chosen answers are from where training began, before they are trained on; nats
    update/drift_l    the same of rejected answers
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rcray.calibration import Calibration, Calibrator, Steered, UpdateSteering, calibrate, score_parameters
from rcray.calibration.scores import Estimator, Reduce
from rcray.calibration.update import Guard
from rcray.config.calibration import WINNER_GUARD
from rcray.errors import ConfigError
from rcray.extras import explained_imports
from rcray.objectives import PairLogps

with explained_imports():
    from trl import DPOTrainer

STATE_FILE = "reward_calibration.json"
STEERING_FILE = "update_steering.pt"


class CalibratedDPOTrainer(DPOTrainer):  # type: ignore[misc]
    """TRL's DPOTrainer with its backward pass held in the disentanglement band.

    Args:
        *args: as for `trl.DPOTrainer`.
        calibrator: the averages and the factor, published (`Calibrator`) or by the update (`UpdateSteering`, made
            without an optimizer); None logs the band and leaves training exactly as TRL's.
        scores: where the score directions are measured: `head`, `sketch`, `adapters`, `full`, or the parameters
            themselves; None: the head where it is trained, else the last adapters (LoRA, QLoRA).
        **kwargs: as for `trl.DPOTrainer`.
    """

    def __init__(
        self,
        *args: Any,
        calibrator: Calibrator | UpdateSteering | None = None,
        scores: Estimator | Sequence[nn.Parameter] | None = None,
        **kwargs: Any,
    ):
        super().__init__(*args, **kwargs)
        if self.ld_alpha is not None:
            raise ConfigError(
                "ld_alpha weighs the tokens of a response differently, so no single incentive describes its likelihood",
                fix="leave ld_alpha unset",
            )
        self.calibrator = calibrator
        # A reference of the user's own may lie anywhere; TRL's is the model where training begins.
        given = kwargs.get("ref_model", args[1] if len(args) > 1 else None)
        self._begins_at_reference = given is None and not getattr(self.args, "sync_ref_model", False)  # moves it
        policy: nn.Module = self.model  # type: ignore[assignment]
        self._score_parameters = _score_parameters(policy, scores)

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        """As the trainer makes it; steering by its updates begins here."""
        optimizer: torch.optim.Optimizer = super().create_optimizer(model)
        if isinstance(self.calibrator, UpdateSteering):
            self.calibrator.clip_norm = self.args.max_grad_norm or math.inf
            self.calibrator.attach(optimizer)
        return optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: torch.optim.Optimizer | None = None) -> Any:
        """As the trainer makes it; the steps that it is made for are the run's."""
        if isinstance(self.calibrator, UpdateSteering):
            self.calibrator.expect(num_training_steps)
        return super().create_scheduler(num_training_steps, optimizer)

    def _clip_grad_norm(self, model: nn.Module) -> Any:
        norm = super()._clip_grad_norm(model)
        if isinstance(self.calibrator, UpdateSteering):
            self.calibrator.clipped(norm)
        return norm

    def _compute_loss(self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool) -> Any:
        if not torch.is_grad_enabled():
            return super()._compute_loss(model, inputs, return_outputs)
        seen: list[Tensor] = []

        def watched(**kwargs: Any) -> Any:
            outputs = model(**kwargs)
            if kwargs.get("fused_lm_head"):
                seen.append(outputs.log_probs)
            return outputs

        result = super()._compute_loss(watched, inputs, return_outputs)
        if len(seen) != 1:
            raise ConfigError(
                f"expected one scoring forward of the policy in TRL's loss, found {len(seen)}",
                fix="rcray.integrations.trl is written for TRL 1.16",
            )
        loss = result[0] if return_outputs else result
        report = self._calibrate(loss, seen[0], inputs["completion_mask"][:, 1:])
        self._record(report)
        if self.calibrator is not None and (isinstance(report, Steered) or report.skipped is None):
            half = len(seen[0]) // 2
            factors = loss.new_tensor([report.alpha] * half + [1 / report.alpha] * half)
            seen[0].register_hook(lambda grad: grad * factors[:, None])
        return result

    def _calibrate(self, loss: Tensor, log_probs: Tensor, mask: Tensor) -> Calibration | Steered:
        """What `calibrate` decides for the first-order expansion of TRL's loss in the likelihoods of this batch."""
        tokens = mask.shape[1]
        half = len(log_probs) // 2
        (slopes,) = torch.autograd.grad(loss, log_probs, retain_graph=True)
        # The likelihood is a sum over tokens, so every token of a response has the same slope.
        slope = (slopes[:, -tokens:] * mask).sum(1) / mask.sum(1)
        z_w, z_l = (log_probs[:, -tokens:] * mask).sum(1).split(half)
        slope_w, slope_l = (slope * half).split(half)  # TRL's loss is the mean over pairs, an incentive is per pair
        reduce = _Processes(self.accelerator) if self.accelerator.num_processes > 1 else None

        def expansion(w: Tensor, l: Tensor) -> Tensor:  # noqa: E741  the paper's letters
            return slope_w * w + slope_l * l

        if isinstance(self.calibrator, UpdateSteering):
            if self.calibrator.guard is None:
                self.calibrator.guard = Guard(WINNER_GUARD * _answer_tokens(mask[:half], reduce))
            pairs = self._against_reference(z_w, z_l)
            return calibrate(expansion, z_w, z_l, calibrator=self.calibrator, pairs=pairs, reduce=reduce).report
        parameters = self._score_parameters
        return calibrate(expansion, z_w, z_l, parameters=parameters, calibrator=self.calibrator, reduce=reduce).report

    def _against_reference(self, z_w: Tensor, z_l: Tensor) -> PairLogps | None:
        """The pairs with the mean drift that TRL just logged as rewards; only their mean is read."""
        if not self._begins_at_reference or not self.beta:
            return None
        logged = self._metrics["train"]
        ref_w, ref_l = (
            z.detach() - logged[f"rewards/{side}"][-1] / self.beta for z, side in ((z_w, "chosen"), (z_l, "rejected"))
        )
        tokens = torch.ones_like(z_w)  # not read
        return PairLogps(z_w, z_l, tokens, tokens, ref_w, ref_l)

    def _record(self, report: Calibration | Steered) -> None:
        if isinstance(report, Steered):
            drift = {"drift_w": report.drift.w, "drift_l": report.drift.l}
            for name, value in {"log_alpha": report.log_alpha, **drift}.items():
                self._metrics["train"][f"update/{name}"].append(value)
            return
        values = {
            "log_r": report.stats.log_r,
            "log_r_star": report.band.log_r_star,
            "rho": report.stats.rho,
            "log_alpha": report.log_alpha,
            "slack": report.slack,
            "in_band": math.nan if report.in_band is None else float(report.in_band),
            "skipped": float(report.skipped is not None),
            "clipped": float(report.clipped),
        }
        for name, value in values.items():
            if math.isfinite(value):  # an inactive side has no ratio, opposed scores have an unbounded band
                self._metrics["train"][f"band/{name}"].append(value)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.calibrator is None or not self.args.should_save:
            return
        folder = Path(self._get_output_dir(trial)) / f"checkpoint-{self.state.global_step}"
        if isinstance(self.calibrator, UpdateSteering):
            torch.save(self.calibrator.state_dict(), folder / STEERING_FILE)
        else:
            (folder / STATE_FILE).write_text(json.dumps(self.calibrator.state_dict()))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self.calibrator is None:
            return
        name = STEERING_FILE if isinstance(self.calibrator, UpdateSteering) else STATE_FILE
        state = Path(resume_from_checkpoint) / name
        if not state.exists():
            raise ConfigError(
                f"{resume_from_checkpoint} holds no {name}: it was written without calibration, or with another kind",
                fix="resume it with calibrator=None or the kind it was written with, or start a new run",
            )
        if isinstance(self.calibrator, UpdateSteering):
            self.calibrator.load_state_dict(torch.load(state, weights_only=True, map_location="cpu"))
        else:
            self.calibrator.load_state_dict(json.loads(state.read_text()))


def _score_parameters(policy: nn.Module, scores: Estimator | Sequence[nn.Parameter] | None) -> list[Tensor]:
    """What stands for the scores; errors name this trainer's argument, not a field of an experiment file."""
    if scores is None:
        head = policy.get_output_embeddings()  # type: ignore[operator]
        scores = "head" if head is not None and head.weight.requires_grad else "adapters"
    if not isinstance(scores, str):
        return list(scores)
    try:
        return score_parameters(policy, scores)
    except ConfigError as error:
        message, fix = (text.replace("calibration.scores: ", "scores=") for text in (error.message, error.fix or ""))
        raise ConfigError(message, fix=fix) from None


def _answer_tokens(mask: Tensor, reduce: Reduce | None) -> float:
    """Mean tokens of an answer, of the batches of all processes: a guard of their own would part them."""
    counts = mask.sum(1).double()
    sums = torch.stack([counts.sum(), torch.ones_like(counts).sum()])
    tokens, answers = (sums if reduce is None else reduce.sum(sums)).tolist()
    return float(tokens / answers)


class _Processes:
    """The reduction over Accelerate's processes."""

    def __init__(self, accelerator: Any):
        self.accelerator = accelerator

    def sum(self, tensor: Tensor) -> Tensor:
        total: Tensor = self.accelerator.reduce(tensor, reduction="sum")
        return total

    def gather(self, values: Tensor) -> Tensor:
        rows: Tensor = self.accelerator.gather(values[None])
        return rows
