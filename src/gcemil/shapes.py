"""Tensor shapes by name; the test run checks every annotated signature.

One letter per axis everywhere: n patches, d feature width, w embedding width, m anchors, a anchor
width, c outputs (classes, or one for risk), k kept rows.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Features = Float[Tensor, "n d"]
Coords = Int[Tensor, "n 2"]
Gates = Float[Tensor, "n"]
LogGates = Float[Tensor, "n"]
Scores = Float[Tensor, "n"]
Logits = Float[Tensor, "c"]
Selected = Bool[Tensor, "n"]

AnchorEmbeddings = Float[Tensor, "m a"]
Responses = Float[Tensor, "n m"]
Coverage = Float[Tensor, "m"]
AnchorWeights = Float[Tensor, "m"]
ClassAnchorWeights = Float[Tensor, "c m"]
