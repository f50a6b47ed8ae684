from __future__ import annotations

import re
from pathlib import Path

import torch

from builders import make_bag

README = Path(__file__).parents[2] / "README.md"


def test_the_python_of_the_readme_runs():
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.DOTALL)
    torch.manual_seed(0)
    bag = make_bag(n_patches=60, dim=1024)
    names = {
        "training_patches": torch.randn(200, 1024),
        "features": torch.from_numpy(bag.features),
        "coords": torch.from_numpy(bag.coords),
        "bag": bag,
    }
    exec(code, names)
    assert names["evidence"].selected.any()
