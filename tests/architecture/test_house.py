"""The shape of the house, proved on the code itself."""

import ast
import importlib
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


def test_help_imports_nothing_that_takes_long():
    code = "import sys; from gcemil.cli.main import app; from typer.testing import CliRunner; r = CliRunner().invoke(app, ['--help']); assert r.exit_code == 0; print({'torch', 'numpy', 'pydantic', 'scipy', 'importlib.metadata', 'rich.progress'} & set(sys.modules))"
    assert run(sys.executable, "-c", code).stdout.strip() == "set()"


def test_the_code_of_tables_does_not_import_torch():
    code = "import sys, gcemil.benchmark.figures, gcemil.diagnostics.agreement; print({'torch'} & set(sys.modules))"
    assert run(sys.executable, "-c", code).stdout.strip() == "set()"


@pytest.mark.parametrize("word", ["utils", "helpers", "common", "misc"])
def test_no_module_is_a_drawer(word):
    assert not [path for path in MODULES if path.stem == word]


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def words_of_code(path):
    """Every name, attribute, argument, import and text of the code; docstrings and comments may say what they like."""
    module = tree(path)
    prose = {
        id(node.value)
        for node in ast.walk(module)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(module):
        match node:
            case ast.Name(id=word) | ast.Attribute(attr=word) | ast.arg(arg=word) | ast.alias(name=word):
                yield node.lineno, word
            case ast.ImportFrom(module=str(word)):
                yield node.lineno, word
            case ast.Constant(value=str(word)) if id(node) not in prose:
                yield node.lineno, word


def reads_truth(path):
    """Lines that name the truth as code does: truth_file, diagnostics.truth, "truth", "truth/..."."""
    named = re.compile(r"(^|[._])truths?($|[._/])")
    return [line for line, word in words_of_code(path) if named.search(word)]


def test_training_never_reads_truth():
    folders = ("training", "evidence", "hosts", "tasks", "recovery")
    paths = [path for folder in folders for path in (SOURCE / folder).rglob("*.py")]
    for path in (*paths, *(SOURCE / name for name in ("model.py", "explain.py"))):
        assert not reads_truth(path), f"{path}: {reads_truth(path)}"


@pytest.mark.parametrize(
    "line",
    [
        "from gcemil.diagnostics.truth import recall",
        "from gcemil.diagnostics import truth",
        "path = cohort.truth_file(name)",
        "path = folder / 'truth' / name",
        "path = folder / f'truth/{name}.h5'",
        "def loss(logits, truth): ...",
    ],
)
def test_code_that_reads_truth_is_seen_and_prose_is_not(tmp_path, line):
    (tmp_path / "code.py").write_text(f"{line}\n")
    assert reads_truth(tmp_path / "code.py") == [1]
    (tmp_path / "prose.py").write_text('"""Never reads truth."""\n# truth/ stays closed\n')
    assert reads_truth(tmp_path / "prose.py") == []


def unpickles(path):
    """Lines that call a loader which runs what a file says."""
    forbidden_calls = {
        "pickle.load",
        "pickle.loads",
        "dill.load",
        "joblib.load",
        "yaml.load",
        "yaml.unsafe_load",
    }
    forbidden_options = {("weights_only", False), ("trust_remote_code", True), ("allow_pickle", True)}
    found = []
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            options = {
                (option.arg, option.value.value)
                for option in node.keywords
                if isinstance(option.value, ast.Constant)
            }
            if ast.unparse(node.func) in forbidden_calls or options & forbidden_options:
                found.append(node.lineno)
        elif isinstance(node, ast.ImportFrom) and node.module in {"pickle", "dill", "joblib"}:
            found.append(node.lineno)
    return found


def test_nothing_is_unpickled():
    for path in MODULES:
        assert not unpickles(path), f"{path}: {unpickles(path)}"


@pytest.mark.parametrize(
    "line",
    [
        "pickle.load(file)",
        "from pickle import load",
        "torch.load(file, weights_only=False)",
        "np.load(file, allow_pickle=True)",
        "yaml.load(text, Loader=Loader)",
    ],
)
def test_a_loader_that_runs_what_a_file_says_is_seen(tmp_path, line):
    (tmp_path / "code.py").write_text(f"{line}\n# torch.load(file, weights_only=True)\n")
    assert unpickles(tmp_path / "code.py") == [1]


def test_input_is_never_checked_by_assert():
    for path in MODULES:
        asserts = [node.lineno for node in ast.walk(tree(path)) if isinstance(node, ast.Assert)]
        assert not asserts, f"{path}: {asserts}"


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_a_benchmark_imports_only_what_is_there(script):
    imports = [node for node in ast.walk(tree(script)) if isinstance(node, ast.ImportFrom)]
    for node in imports:
        if (node.module or "").startswith("gcemil"):
            module = importlib.import_module(node.module)
            missing = [name.name for name in node.names if not hasattr(module, name.name)]
            assert not missing, f"{node.module} has no {missing}"


def test_every_dependency_has_its_line():
    text = (ROOT / "docs" / "dependencies.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    block = project[project.index("dependencies = [") : project.index("[project.scripts]")]
    for name in re.findall(r'"([A-Za-z0-9_-]+)[><=]', block):
        assert re.search(rf"\b{re.escape(name)}\b", text, re.IGNORECASE) or name in {"types-PyYAML"}, name


def test_links_of_the_documentation_lead_somewhere():
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+\.(?:md|ipynb|png))", page.read_text()):
            found = page.parent / target
            # The site makes these from the code and from the notebooks (docs/hooks.py).
            is_made = found.parent.name == "reference" or found.with_suffix(".ipynb").is_file()
            assert found.is_file() or is_made, f"{page.name} -> {target}"


def test_modules_named_in_contributing_exist():
    for name in re.findall(r"`(src/[^`]+)`", (ROOT / "CONTRIBUTING.md").read_text()):
        assert (ROOT / name).is_file()


@pytest.mark.parametrize("page", ["README.md", "docs/howto/ten_commands.md", "docs/howto/install.md"])
def test_commands_of_the_first_pages_are_understood(page):
    import shlex

    import typer.main

    from gcemil.cli.main import app

    verbs = typer.main.get_command(app).commands
    blocks = re.findall(r"^```bash\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("gcemil ")]
    assert len(lines) == {"README.md": 3, "docs/howto/ten_commands.md": 10, "docs/howto/install.md": 2}[page]
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


WRITES_BY_ITSELF = {
    # A line is added to a log, under a lock.
    "benchmark/results.py",
    # Curves: TensorBoard reads a file of records while it grows, and passes over a last one that is cut.
    "training/epochs.py",
}


def writes_of(path):
    """Calls that write a file, but for those into the temporary name that `atomic_write` gives."""
    for node in ast.walk(tree(path)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="temporary"))):
                continue
            case ast.Call(func=ast.Attribute(attr="write_text" | "write_bytes")):
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="open") | ast.Name(id="open"), args=arguments):
                modes = [one.value for one in arguments if isinstance(one, ast.Constant)]
                if any(
                    re.fullmatch(r"[rwax]b?\+?b?", str(mode)) and mode not in ("r", "rb") for mode in modes
                ):
                    yield node.lineno


def test_every_file_is_written_whole_or_not_at_all():
    found = [
        f"{name}:{line}"
        for path in MODULES
        if (name := path.relative_to(SOURCE).as_posix()) not in {"files.py", *WRITES_BY_ITSELF}
        for line in writes_of(path)
    ]
    assert not found, f"Write with gcemil.files: {found}"
    # A test that sees nothing would pass for ever.
    assert all(list(writes_of(SOURCE / name)) for name in ("files.py", *WRITES_BY_ITSELF))
