"""A GPU that is only pretended: real shapes, no weights, no card. What a step waits for, computes in, and holds."""

from rcray.extras import require

require("sweep")  # every module here works on transformers' models
