"""What the documentation takes from the code while it is built: commands, settings, public names, and the tutorials' notebooks.

mkdocs calls `on_files` before it reads any page. Nothing here is written to disk, so no page can fall behind the code.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import gcemil
from gcemil.bags.cohort import CohortCard
from gcemil.benchmark.grid import Grid
from gcemil.cli.main import GROUPS, app
from gcemil.config import TrainSettings
from gcemil.simulation.profile import Dials
from gcemil.wording import describe_field, model_within

ROOT = Path(__file__).parent
SETTINGS = {
    "Training": (TrainSettings, "`gcemil train --config FILE --set KEY=VALUE`; `gcemil train --print-config` prints them with these comments."),
    "cohort.yaml": (CohortCard, "The card of a cohort folder."),
    "Grid": (Grid, "The file of `gcemil benchmark`."),
    "Dials of the simulator": (Dials, "`gcemil simulate PROFILE --dial KEY=VALUE`."),
}  # fmt: skip


ROOT_PAGES = ("SECURITY", "CONTRIBUTING", "CHANGELOG")
"""Files beside docs/ that are pages of the site too."""


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links that lead out of docs/ lead to the page of that file."""
    for name in ROOT_PAGES:
        markdown = markdown.replace(f"](../{name}.md", f"]({name.lower()}.md")
        markdown = markdown.replace(f"](../../{name}.md", f"](../{name.lower()}.md")
    return markdown


def _move_links(markdown: str) -> str:
    """The links of a file beside docs/, seen from inside it."""
    markdown = markdown.replace("](docs/", "](")
    for name in ROOT_PAGES:
        markdown = markdown.replace(f"]({name}.md", f"]({name.lower()}.md")
    return markdown


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages."""
    from mkdocs.structure.files import File

    pages = {
        "reference/commands.md": "\n".join(_commands_page()),
        "reference/settings.md": "\n".join(_settings_page()),
        "reference/api.md": "\n".join(_api_page()),
    }
    for name in ROOT_PAGES:
        pages[f"{name.lower()}.md"] = _move_links(
            (ROOT.parent / f"{name}.md").read_text(encoding="utf-8")
        )
    for notebook in sorted((ROOT / "tutorials").glob("*.ipynb")):
        pages[f"tutorials/{notebook.stem}.md"] = "\n".join(_notebook_page(notebook))
    for name, content in pages.items():
        files.append(File.generated(config, name, content=content))
    return files


def _commands_page() -> Iterator[str]:
    """Every command in its group, with its arguments, options and example."""
    import typer

    tree = typer.main.get_command(app)
    yield "# Commands\n"
    yield "`gcemil --help` lists the commands in these groups; `gcemil COMMAND --help` prints the text of this page."
    yield "`--quiet`, `--verbose` and `--debug` can be given before or after any command."
    yield "Exit codes: 0 success, 1 a problem was found, 2 the command is invalid, 130 stopped with Ctrl-C.\n"
    for group, commands in GROUPS.items():
        yield f"## {group}\n"
        for name in commands:
            yield from _command(f"gcemil {name}", tree.commands[name])
        if group == "Make a cohort":
            for name, command in tree.commands["anchors"].commands.items():
                yield from _command(f"gcemil anchors {name}", command)


def _command(title: str, command: Any) -> Iterator[str]:
    yield f"### {title}\n"
    paragraphs = (command.help or "").strip().split("\n\n")
    for paragraph in paragraphs:
        text = " ".join(paragraph.split())
        if text.startswith("Example: "):
            text = f"Example: `{text.removeprefix('Example: ')}`"
        yield f"{_escape(text)}\n" if "`" not in text else f"{text}\n"
    # Their context names the values that options take.
    context = command.make_context(title, [], resilient_parsing=True)
    rows = [
        _parameter(one)
        for one in command.get_params(context)
        if one.name != "help" and not getattr(one, "hidden", False)
    ]
    if rows:
        yield "| | takes | meaning |\n|---|---|---|"
        yield from rows
    yield ""


def _parameter(parameter: Any) -> str:
    names = (
        [*parameter.opts, *parameter.secondary_opts]
        if parameter.param_type_name == "option"
        else [parameter.metavar]
    )
    takes = (
        ""
        if getattr(parameter, "is_flag", False) or parameter.param_type_name == "argument"
        else parameter.metavar
    )
    meaning = _escape(parameter.help or "")
    default = parameter.default
    if parameter.required:
        meaning += " **Required.**"
    elif default not in (None, False, [], ()) and not callable(default):
        meaning += f" Default: `{getattr(default, 'value', default)}`."
    listed = ", ".join(f"`{name}`" for name in names)
    shown = takes.replace("|", "\\|")
    return f"| {listed} | {f'`{shown}`' if shown else ''} | {meaning} |"


def _settings_page() -> Iterator[str]:
    """Every setting with its default, its meaning and what it accepts."""
    yield "# Settings\n"
    for title, (shape, where) in SETTINGS.items():
        yield f"## {title}\n\n{where}\n"
        yield "| key | default | meaning |\n|---|---|---|"
        yield from _settings(shape, "")
        yield ""


def _settings(shape: Any, above: str) -> Iterator[str]:
    for name, field in shape.model_fields.items():
        inner = model_within(field.annotation)
        default = "" if field.is_required() else field.get_default(call_default_factory=True)
        shown = (
            "" if inner is not None or default == "" else f"`{json.dumps(default, default=str)}`"
        )
        meaning = _escape(describe_field(field) or _attribute_docstrings(shape).get(name, ""))
        yield f"| `{above}{name}` | {shown} | {meaning}{' **Required.**' if field.is_required() else ''} |"
        if inner is not None:
            yield from _settings(inner, f"{above}{name}.")


def _attribute_docstrings(shape: Any) -> dict[str, str]:
    """Texts that stand below the fields of a class."""
    import inspect
    import textwrap

    body = ast.parse(textwrap.dedent(inspect.getsource(shape))).body[0].body  # type: ignore[attr-defined]
    return {
        first.target.id: second.value.value
        for first, second in pairwise(body)
        if isinstance(first, ast.AnnAssign)
        and isinstance(first.target, ast.Name)
        and isinstance(second, ast.Expr)
        and isinstance(second.value, ast.Constant)
        and isinstance(second.value.value, str)
    }


FIRST_NAMES = (
    "fit",
    "explain",
    "audit",
    "wrap",
    "save",
    "load",
    "FittedModel",
    "Evidence",
    "Bag",
    "Cohort",
    "AnchorBank",
)
"""Names that most scripts need, in the order in which they need them."""
API_INTRODUCTION = """\
# Python

The public names of `import gcemil`; everything else may change without notice. See also the [tutorial](../tutorials/python.md).

```python
import gcemil

model = gcemil.fit(bags, labels, host="abmil")      # tensors, arrays, Bags, a torchmil dataset or a Cohort
evidence = gcemil.explain(model, bag)               # indices, scores, prediction, verdict; plot, to_frame, to_geojson
table = gcemil.audit(my_module, bags, my_scores)    # any model, any explanation: a row per bag and rule
```

`gcemil.hosts.create_host` creates a built-in host. `gcemil.anchors` is an alias of `gcemil.AnchorBank`.

## Main names
"""


def _api_page() -> Iterator[str]:
    """Every public name of the package, the main ones first."""
    yield API_INTRODUCTION
    others = [name for name in gcemil.__all__ if name in gcemil._HOME and name not in FIRST_NAMES]
    for title, names in (("", FIRST_NAMES), ("## Building blocks\n", others)):
        yield title
        for name in names:
            yield f"::: {gcemil._HOME[name]}.{name}\n    options:\n      heading_level: 3\n"


def _notebook_page(path: Path) -> Iterator[str]:
    """A notebook as a page: its text, its cells, and what they printed when they were run."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    for number, cell in enumerate(notebook["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield f"{source}\n"
            if number == 0:
                yield f"[This page as a notebook]({path.name}){{ download }}\n"
            continue
        is_shell = source.startswith("%%bash")
        yield f"```{'bash' if is_shell else 'python'}\n{source.removeprefix('%%bash').strip()}\n```\n"
        printed = "".join("".join(output.get("text", "")) for output in cell["outputs"]).rstrip()
        if printed:
            yield f"```text\n{printed}\n```\n"


def _escape(text: str) -> str:
    """Text for a cell of a table: a stroke would end the cell, and <slide> would be read as markup."""
    return (
        text.replace("|", "\\|")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace("*", "\\*")
        .replace("_", "\\_")
    )
