"""Other names of objectives: what a TRL user types, and names for a setting of an objective that the zoo has.

A name is replaced before anything else reads the settings, so a run is the same run under each of its names. A name of
TRL (`trl/LOSS_TYPE`, a `loss_type` of its DPOTrainer) brings TRL's defaults, its parameters under TRL's words, and the
likelihood that TRL takes: sums, but means for `ipo` and `sigmoid_norm`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from rcray.config.objectives import BY_NAME
from rcray.errors import did_you_mean

TRL = "trl/"


@dataclass(frozen=True)
class Name:
    """What a name stands for."""

    objective: str
    likelihood: Literal["sum", "mean"] | None = None  # None: as the run has it
    settings: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)  # TRL's parameter: ours


_BETA = {"beta": "beta"}
_SMOOTHED = {"beta": "beta", "label_smoothing": "label_smoothing"}


def _trl(objective: str, words: Mapping[str, str] = _BETA, *, mean: bool = False, **settings: Any) -> Name:
    return Name(objective, "mean" if mean else "sum", {"beta": 0.1} | settings, words)


#: Every objective and `loss_type` that the zoo has under another name.
NAMES: Mapping[str, Name] = {
    "apo-zero": Name("kto", settings={"beta": 0.1}),
    "sigmoid-norm": Name("dpo", likelihood="mean"),
    "trl/sigmoid": _trl("dpo", {**_BETA, "f_divergence_type": "divergence"}),
    "trl/sigmoid_norm": _trl("dpo", mean=True),
    "trl/hinge": _trl("hinge"),
    "trl/ipo": Name("ipo", "mean", {"tau": 0.1}, {"beta": "tau"}),
    "trl/exo_pair": _trl("exo", _SMOOTHED, label_smoothing=1e-3),  # TRL's own default, 0, is one that it refuses
    "trl/nca_pair": _trl("nca"),
    "trl/robust": _trl("robust", _SMOOTHED, label_smoothing=0.0),
    "trl/bco_pair": _trl("bco"),
    "trl/sppo_hard": _trl("sppo-hard"),
    "trl/apo_zero": _trl("kto", lam_w=1.0, lam_l=1.0, baseline="none"),
    "trl/apo_down": _trl("apo-down"),
    "trl/discopop": _trl("discopop", {**_BETA, "discopop_tau": "tau"}, tau=0.05),
}

#: Each other `loss_type` of TRL: why it is refused, and the nearest that is not.
REFUSED: Mapping[str, str] = {
    "trl/aot": "it sorts the margins of a batch, so no pair has incentives of its own; the nearest is 'cdpo', which it "
    "is on batches of one pair",
    "trl/aot_unpaired": "it sorts the rewards of a batch, so no pair has incentives of its own; the nearest is 'cdpo', "
    "which it is on batches of one pair",
    "trl/sft": "it has no rejected answer to balance; the nearest is 'rpo', DPO with that term",
}

_DIVERGENCES = ("reverse_kl", "forward_kl", "js_divergence")


def nearest_name(name: str) -> str:
    """What to write in place of an unknown name, as the end of a message."""
    if f"{TRL}{name}" in {**NAMES, **REFUSED}:
        return f"; did you mean '{TRL}{name}', TRL's loss_type?"
    return did_you_mean(name, [*BY_NAME, *(known for known in NAMES if not known.startswith(TRL))])


def other_names(objective: str) -> list[dict[str, Any]]:
    """What else an objective of the zoo is called, and what each name sets."""
    return [
        {"name": name, "likelihood": known.likelihood, "settings": dict(known.settings)}
        for name, known in NAMES.items()
        if known.objective == objective
    ]


def resolve_objective(given: Mapping[str, Any]) -> tuple[dict[str, Any], str | None]:
    """The objective under its own name with what its name sets, and the likelihood that the name asks for.

    Raises:
        ValueError: TRL has the name, or does not, and there is nothing in the zoo for it.
    """
    name = given.get("name")
    if isinstance(name, str) and name.startswith(TRL) and name not in NAMES:
        if name in REFUSED:
            raise ValueError(f"objective.name: {name!r} is not offered: {REFUSED[name]}")
        theirs = [known for known in [*NAMES, *REFUSED] if known.startswith(TRL)]
        raise ValueError(f"objective.name: unknown loss_type {name!r}{did_you_mean(name, theirs)}")
    if not isinstance(name, str) or name not in NAMES:
        return dict(given), None
    known = NAMES[name]
    parameters = {key: value for key, value in given.items() if key != "name"}
    if known.words:
        for key in [key for key in parameters if key not in known.words]:
            raise ValueError(f"objective.{key}: unknown field of {name!r}{did_you_mean(key, known.words)}")
        parameters = {known.words[key]: value for key, value in parameters.items()}
    settings = {**known.settings, **parameters}
    if "divergence" in settings:
        return _with_divergence(settings), known.likelihood
    return {"name": known.objective, **settings}, known.likelihood


def _with_divergence(settings: dict[str, Any]) -> dict[str, Any]:
    divergence = settings.pop("divergence")
    if divergence not in _DIVERGENCES:
        raise ValueError(
            f"objective.f_divergence_type: {divergence!r} is not allowed{did_you_mean(str(divergence), _DIVERGENCES)}"
        )
    if divergence == "reverse_kl":
        return {"name": "dpo", **settings}
    return {"name": "f-dpo", "divergence": divergence, **settings}


def resolve(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run with its objective under its own name; short forms are opened already.

    Raises:
        ValueError: the name asks for one likelihood and the settings for another.
    """
    given = settings.get("objective")
    if not isinstance(given, Mapping):
        return settings
    objective, likelihood = resolve_objective(given)
    if likelihood is None:
        return {**settings, "objective": objective}
    if settings.get("likelihood", likelihood) != likelihood:
        raise ValueError(
            f"likelihood: {settings['likelihood']!r} is not what {given['name']!r} takes, which is the {likelihood}; "
            f"leave it out, or name the objective {objective['name']!r}"
        )
    return {**settings, "objective": objective, "likelihood": likelihood}
