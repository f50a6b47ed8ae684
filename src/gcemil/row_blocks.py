"""A bag in blocks of rows: what treats every patch on its own never needs the whole bag at once.

A slide of 200,000 patches of width 1024 takes 0.4 GB as stored in half precision, 0.8 GB in single, and as much again for
each temporary of a layer. So a large bag stays as it is stored. Outside training its rows are widened and mapped block
after block, each result being written straight to its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

BLOCK_ROWS = 16_384
"""Rows mapped at once. A bag of no more is treated as a whole."""


def widened(rows: Tensor) -> Tensor:
    """Half precision as single, in which everything is computed; any other as it is."""
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


def is_large(n_rows: int) -> bool:
    """Whether a bag of so many rows is taken in blocks."""
    return n_rows > BLOCK_ROWS


def row_blocks(n_rows: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` rows, in order."""
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))


def mapped_rows(function: Callable[..., Sequence[Tensor]], *inputs: Tensor) -> list[Tensor]:
    """The function of the rows, widened; in blocks where no gradient is wanted.

    The function treats every row on its own, and gives tensors whose first axis is that of the rows.
    """
    n_rows = len(inputs[0])
    if torch.is_grad_enabled() or not is_large(n_rows):
        return list(function(*map(widened, inputs)))
    whole: list[Tensor] = []
    for part in row_blocks(n_rows, BLOCK_ROWS):
        given = [widened(one[part]) for one in inputs]
        results = function(*given)
        if not whole:
            whole = [
                # Rows handed through as they are need no second copy.
                inputs[0] if is_same(result, inputs[0][part]) else result.new_empty(n_rows, *result.shape[1:])
                for result in results
            ]
        for target, result in zip(whole, results, strict=True):
            if target is not inputs[0]:
                target[part] = result
    return whole


def is_same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are the same place read in the same way."""
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.dtype == other.dtype
