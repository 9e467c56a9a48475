"""How far logits are from the reference's, of which only the best are kept (smollm2.py writes them)."""

from __future__ import annotations

import numpy as np


def log_sum_exp(x: np.ndarray) -> np.ndarray:
    """Over the last axis, in float64."""
    x = x.astype(np.float64)
    top = x.max(-1, keepdims=True)
    return (top + np.log(np.exp(x - top).sum(-1, keepdims=True)))[..., 0]


def divergence(ids: np.ndarray, best: np.ndarray, log_sum: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """KL(reference || logits) in nats of each position, with all tokens but the best as one.

    ids, best (n, k): the reference's best tokens and their logits; log_sum (n,) over all of its logits; logits (n, n_vocab).
    """
    p = best.astype(np.float64) - log_sum.astype(np.float64)[:, None]
    q = np.take_along_axis(logits, ids.astype(np.int64), -1) - log_sum_exp(logits)[:, None]
    p_rest, q_rest = (np.maximum(1 - np.exp(x).sum(-1), 1e-12) for x in (p, q))
    return (np.exp(p) * (p - q)).sum(-1) + p_rest * (np.log(p_rest) - np.log(q_rest))


def agreement(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
    """Whether the best token of each position is the reference's."""
    return logits.argmax(-1) == ids[:, 0]
