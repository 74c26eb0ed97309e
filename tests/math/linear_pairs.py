"""Pairs with chosen likelihoods and scores, and every form of every objective to calibrate them with."""

import torch

from rcray.calibration import calibrate
from rcray.config.objectives import BY_NAME
from rcray.objectives import PairLogps

#: Every objective at its defaults, and the settings that make it another function.
VARIANTS = {
    **{name: (name, {}) for name in BY_NAME},
    "tdpo-1": ("tdpo", {"variant": 1}),
    "kto-kl": ("kto", {"baseline": "kl"}),
    **{f"bpo-{kind}": ("bpo", {"kind": kind}) for kind in ("lr", "kliep", "lsif", "ba")},
    "bpo-sba-0": ("bpo", {"lam": 0.0}),
    "f-dpo-forward": ("f-dpo", {"divergence": "forward_kl"}),
}


class Linear:
    """Pairs whose likelihoods have chosen values and chosen scores: z = value + direction . theta at theta = 0."""

    def __init__(self, z_w, z_l, s_w, s_l, dtype=torch.float64, ref=0.0, n_w=None, n_l=None):
        self.theta = torch.zeros(len(s_w[0]), dtype=dtype, requires_grad=True)

        def side(z, s):
            return torch.tensor(z, dtype=dtype) + torch.tensor(s, dtype=dtype) @ self.theta

        self.z_w, self.z_l = side(z_w, s_w), side(z_l, s_l)
        count = len(z_w)
        ref = torch.full((count,), ref, dtype=dtype)
        self.pairs = PairLogps(
            self.z_w, self.z_l, torch.tensor(n_w or [5] * count), torch.tensor(n_l or [5] * count), ref, ref,
            constants={"kl_w": torch.full((count,), 0.3, dtype=dtype), "kl_baseline": torch.tensor(0.2, dtype=dtype)},
        )  # fmt: skip

    def calibrate(self, loss, calibrator, reduce=None):
        return calibrate(
            loss, self.z_w, self.z_l, parameters=[self.theta], calibrator=calibrator, pairs=self.pairs, reduce=reduce
        )


def random_pairs(seed, count=3, dtype=torch.float64, width=4):
    g = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    common = draw(width)
    return Linear(
        (-3 + draw(count)).tolist(), (-3 + draw(count)).tolist(),
        (draw(count, width) + common).tolist(), (2 * draw(count, width) + common).tolist(),
        dtype, ref=-3.0, n_w=list(range(4, 4 + count)), n_l=list(range(6, 6 + count)),
    )  # fmt: skip
