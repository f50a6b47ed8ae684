"""The notebooks of the tutorials run, the site builds without a warning, and the wheel is complete in an empty environment."""

import json
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_holds_text_alone_and_no_path_of_a_machine(path):
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert {output["output_type"] for output in outputs} <= {"stream"}
    printed = "".join("".join(output["text"]) for output in outputs)
    assert not re.search(r"/tmp/|/home/|Traceback|\x1b", printed)


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    code = "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[1]); from run import run_notebook; run_notebook(Path(sys.argv[2]), Path(sys.argv[3]))"
    ended = subprocess.run(
        [sys.executable, "-c", code, str(path.parent), str(path), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_asks_nothing_of_the_network(tmp_path):
    pytest.importorskip("mkdocs")
    ended = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    for page in (tmp_path / "site").rglob("*.html"):
        text = page.read_text()
        assert 'src="http' not in text, page
        assert 'rel="stylesheet" href="http' not in text, page
    commands = (tmp_path / "site" / "reference" / "commands.html").read_text()
    assert "gcemil anchors from-examples" in commands
    settings = (tmp_path / "site" / "reference" / "settings.html").read_text()
    assert "evidence.recovery.coverage_target" in settings


@pytest.mark.slow
def test_the_wheel_alone_runs_the_demo(tmp_path):
    """Built as by 'python -m build --wheel', installed into an environment that holds its dependencies and nothing of ours."""
    build = [
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--outdir",
        str(tmp_path / "dist"),
        str(ROOT),
    ]
    made = subprocess.run(build, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stdout + made.stderr
    (wheel,) = (tmp_path / "dist").glob("gcemil-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    # Everything under src/gcemil that is no cache is in it.
    here = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "gcemil").rglob("*") if path.is_file() and "__pycache__" not in path.parts}  # fmt: skip
    assert here <= set(names)
    assert not [name for name in names if not name.startswith("gcemil")]

    venv.create(tmp_path / "env", with_pip=False)
    scripts = Path(sysconfig.get_path("scripts", "venv", vars={"base": str(tmp_path / "env")}))
    packages = Path(sysconfig.get_path("purelib", "venv", vars={"base": str(tmp_path / "env")}))
    zipfile.ZipFile(wheel).extractall(packages)
    # Dependencies come from the environment of the tests, behind the wheel; no network is needed.
    (packages / "zz_dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = (
        "import gcemil, sys; assert gcemil.__file__.startswith(sys.argv[1]), gcemil.__file__; "
        "from gcemil.cli.main import main; sys.argv = ['gcemil', 'demo', '--out', 'demo']; main()"
    )
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [str(scripts / "python"), "-c", code, str(packages)],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert (tmp_path / "demo" / "run" / "report.html").is_file()
