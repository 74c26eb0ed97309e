"""A GPU that is only pretended: real shapes, no weights, no card. What a step waits for, computes in, and holds."""
