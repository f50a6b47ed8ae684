"""A bag in blocks of rows: what treats every patch on its own never needs the whole bag at once.

A slide of 200,000 patches of width 1024 takes 0.4 GB in half precision, 0.8 GB in single, and as
much again for each temporary of a layer. So outside training a large bag stays as it is stored, and
its rows are converted to float32 and mapped block after block.

Several linear maps of one bag are one matrix product and one pass for the norms: the selector and
the bridge each need some inner products of h_i with a few rows and perhaps |h_i|^2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.shapes import Features

BLOCK_ROWS = 16_384
"""Rows mapped at once. A bag of no more is treated as a whole."""


def to_float32(rows: Tensor) -> Tensor:
    """Half precision as single, in which everything is computed; any other as it is."""
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


def is_large(n_rows: int) -> bool:
    """Whether a bag of so many rows is taken in blocks."""
    return n_rows > BLOCK_ROWS


def row_blocks(n_rows: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` rows, in order."""
    return (slice(start, min(start + size, n_rows)) for start in range(0, n_rows, size))


def mapped_rows(function: Callable[..., Sequence[Tensor]], *inputs: Tensor) -> list[Tensor]:
    """Apply the function to the rows in float32; in blocks where no gradient is wanted.

    The function treats every row on its own, and gives tensors whose first axis is that of the
    rows.
    """
    n_rows = len(inputs[0])
    if torch.is_grad_enabled() or not is_large(n_rows):
        return list(function(*map(to_float32, inputs)))
    whole: list[Tensor] = []
    for part in row_blocks(n_rows, BLOCK_ROWS):
        results = function(*(to_float32(rows[part]) for rows in inputs))
        if not whole:
            rows = inputs[0][part]
            whole = [
                # Rows handed through as they are need no second copy.
                inputs[0]
                if (one.data_ptr(), one.shape, one.dtype)
                == (rows.data_ptr(), rows.shape, rows.dtype)
                else one.new_empty(n_rows, *one.shape[1:])
                for one in results
            ]
        for target, result in zip(whole, results, strict=True):
            if target is not inputs[0]:
                target[part] = result
    return whole


SquaredNorms = Callable[[], Tensor]
"""|h_i|^2, computed only for reads that need it, as it takes a pass over the bag."""


@dataclass(frozen=True)
class LinearRead:
    """rows @ h + offsets for every patch, and how (products, squared norms) become the result."""

    rows: Float[Tensor, "r d"]
    offsets: Float[Tensor, "r"]
    finish: Callable[[Tensor, SquaredNorms], Tensor]


def plain_read(rows: Float[Tensor, "r d"]) -> LinearRead:
    """The products themselves."""
    return LinearRead(rows, rows.new_zeros(len(rows)), lambda products, _: products)


def apply_reads(features: Features, reads: Sequence[LinearRead]) -> tuple[Tensor, ...]:
    """The result of every read, in their order."""
    rows = torch.cat([read.rows for read in reads])
    offsets = torch.cat([read.offsets for read in reads]).unsqueeze(1)
    widths = [len(read.rows) for read in reads]

    def finished(patches: Features) -> list[Tensor]:
        # A few rows times the bag transposed takes half the time of the bag times a few columns.
        products = torch.split(torch.addmm(offsets, rows, patches.T).T.contiguous(), widths, dim=1)
        squared_norms = cache(lambda: squared_norm(patches))
        return [
            read.finish(part, squared_norms) for read, part in zip(reads, products, strict=True)
        ]

    return tuple(mapped_rows(finished, features))


def squared_norm(rows: Float[Tensor, "n w"]) -> Float[Tensor, "n"]:
    # vector_norm streams over the rows; rows.square() would hold a second copy of the bag.
    return torch.linalg.vector_norm(rows, dim=1).square()
