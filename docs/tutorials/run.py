"""Run the notebooks of this folder and keep what they print: python docs/tutorials/run.py [NAME ...]

Each runs in an empty folder that is removed afterwards. Times and machines do not belong into a page, so that only text is kept.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_output

HERE = Path(__file__).parent
LONGEST_CELL_S = 900


def run_notebook(path: Path, folder: Path) -> Any:
    """The notebook with the outputs of its cells, run in this folder; a cell that fails is an error."""
    notebook = nbformat.read(path, as_version=4)
    # The 'gcemil' of this Python, and one core: the tutorials are small.
    tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "PATH": tools,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "100",
        "GCEMIL_QUIET": "1",
    }
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        NotebookClient(
            notebook,
            timeout=LONGEST_CELL_S,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
        ).execute()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return notebook


def strip_notebook(notebook: Any, folder: Path) -> Any:
    """Text alone, without counters, colours, times and the folder: running it again changes nothing but what it prints."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count = None
            printed = "".join(
                output.text for output in cell.outputs if output.output_type == "stream"
            )
            # Jupyter asks for colours; a page has none.
            plain = re.sub(r"\x1b\[[0-9;]*m", "", printed).replace(f"{folder}/", "")
            cell.outputs = [new_output("stream", name="stdout", text=plain)] if plain else []
        cell.metadata = {}
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
    }
    return notebook


if __name__ == "__main__":
    for found in sorted(HERE.glob("*.ipynb")):
        if not sys.argv[1:] or found.stem in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as aside:
                nbformat.write(strip_notebook(run_notebook(found, Path(aside)), Path(aside)), found)
            print(f"ran {found.name}")
