"""Formulas as the papers write them, for tests of faster ways to the same numbers."""

from __future__ import annotations

import torch


def published_iteration(matrix, iterations):
    """The Nyströmformer's iteration, written as its paper writes it."""
    inverse = matrix.mT / (matrix.sum(-1).max() * matrix.sum(-2).max())
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = (
            0.25
            * inverse
            @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product)))
        )
    return inverse
