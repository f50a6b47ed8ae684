"""The shape of the house, proved on the code itself."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import gcemil

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "gcemil"
MODULES = sorted(SOURCE.rglob("*.py"))


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False, **options)


def test_import_contracts_hold():
    lint = Path(sys.executable).with_name("lint-imports")
    result = run(str(lint), "--no-cache")
    assert result.returncode == 0, result.stdout


def test_public_names_are_sorted_and_exist():
    constants = sorted(name for name in gcemil.__all__ if name.isupper())
    assert gcemil.__all__ == constants + sorted(name for name in gcemil.__all__ if not name.isupper())
    for name in gcemil.__all__:
        assert getattr(gcemil, name) is not None


def test_help_imports_no_torch():
    code = "import sys; from gcemil.cli.main import app; from typer.testing import CliRunner; r = CliRunner().invoke(app, ['--help']); assert r.exit_code == 0; print('torch' in sys.modules)"
    assert run(sys.executable, "-c", code).stdout.strip() == "False"


@pytest.mark.parametrize("word", ["utils", "helpers", "common", "misc"])
def test_no_module_is_a_drawer(word):
    assert not [path for path in MODULES if path.stem == word]


def test_training_never_reads_truth():
    for folder in ("training", "evidence", "hosts", "tasks", "recovery"):
        for path in (SOURCE / folder).rglob("*.py"):
            assert "truth" not in path.read_text().replace("the truth of", ""), path
    for name in ("model.py", "explain.py", "interventions.py"):
        assert "truth" not in (SOURCE / name).read_text()


def test_nothing_is_unpickled():
    forbidden = re.compile(
        r"pickle\.load|weights_only=False|yaml\.load\(|trust_remote_code=True|allow_pickle=True"
    )
    assert not [path for path in MODULES if forbidden.search(path.read_text())]


def test_input_is_never_checked_by_assert():
    for path in MODULES:
        asserts = [
            node.lineno for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Assert)
        ]
        assert not asserts, f"{path}: {asserts}"


def test_every_dependency_has_its_line():
    text = (ROOT / "docs" / "dependencies.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    block = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    for name in re.findall(r'"([A-Za-z0-9_-]+)[><=]', block):
        assert re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE) or name in {"types-PyYAML"}, name


def test_links_of_the_documentation_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text()):
            assert (page.parent / target).is_file(), f"{page.name} -> {target}"


def test_modules_named_in_contributing_exist():
    for name in re.findall(r"`(src/[^`]+)`", (ROOT / "CONTRIBUTING.md").read_text()):
        assert (ROOT / name).is_file()


def test_commands_of_the_readme_are_understood():
    import shlex

    import typer.main

    from gcemil.cli.main import app

    verbs = typer.main.get_command(app).commands
    text = (ROOT / "README.md").read_text()
    lines = re.findall(r"^gcemil .*$", text, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        _, verb, *arguments = shlex.split(line, comments=True)
        # Parsing alone: every option exists and every argument has its place.
        verbs[verb].make_context(verb, arguments, resilient_parsing=False)


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make ([a-z-]+)", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_version_has_one_home():
    project = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in project
    assert f"version: {gcemil.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## {gcemil.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_tab_completion_shows_the_public_names():
    assert set(gcemil.__all__) <= set(dir(gcemil))
