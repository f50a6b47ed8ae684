"""What hosts with several softmaxes over the patches share (clam_mb, acmil): the embedding and the closed forms.

A branch b pools with A_b = softmax(z_b); `values` are the head's readings of each patch, one column per output.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from gcemil.hosts.attention import predicted_column, read_means_without_each
from gcemil.hosts.host import Embedded
from gcemil.shapes import LogGates, Logits, Scores


@dataclass(frozen=True)
class BranchPoolEmbedded(Embedded):
    attention_logits: Float[Tensor, "n b"]
    values: Float[Tensor, "n c"]


def branch_weights(
    attention_logits: Float[Tensor, "n b"], log_gates: LogGates | None
) -> Float[Tensor, "n b"]:
    """The softmax of every branch, the gate entering before each."""
    if log_gates is not None:
        attention_logits = attention_logits + log_gates.unsqueeze(1)
    return torch.softmax(attention_logits, dim=0)


def centred_shares(shares: Float[Tensor, "n c"], logits: Logits) -> Scores:
    """The share of each patch in the predicted output, less its mean share where there are several outputs."""
    if len(logits) == 1:
        return shares[:, 0]
    return predicted_column(shares, logits) - shares.mean(dim=1)


def branch_without_each(attention_logits: Scores, values: Scores) -> Scores:
    """The mean of the values under one branch, once without each patch."""
    return read_means_without_each(attention_logits, values.unsqueeze(1), torch.ravel)
