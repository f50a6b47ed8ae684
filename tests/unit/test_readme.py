"""The first page: its Python runs, and it stays short."""

from __future__ import annotations

import re
from pathlib import Path

import torch

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    # The page trains for as long as the default does; a test need not.
    code = code.replace("anchors=examples)", "anchors=examples, epochs=2)")
    generator = torch.Generator().manual_seed(0)
    grid = 256 * torch.cartesian_prod(torch.arange(6), torch.arange(5))
    bags = [(torch.randn(30, 16, generator=generator) + number % 2, grid) for number in range(16)]
    examples = {"lesion": torch.randn(5, 16, generator=generator) + 1}
    names = {"bags": bags, "labels": ["normal", "tumour"] * 8, "examples": examples}
    exec(code, names)
    assert set(names["table"]["rule"]) == {"evidence", "attention", "random"}
    assert (tmp_path / "slide.geojson").is_file()
    assert (tmp_path / "my_model" / "model.safetensors").is_file()
    assert capsys.readouterr().out.strip()
