"""The script for QuPath. QuPath itself is not here: what the script calls of it is played by closures that take notes."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gcemil.cli.main import app
from gcemil.diagnostics.agreement import mark_of
from gcemil.exports.geojson import ATTENTION, EVIDENCE
from gcemil.resources import read_shipped_text

SCRIPT = read_shipped_text("qupath", "gcemil_review.groovy")

PLAYED = """
def script = new File(args[0]).text
def thing = { name, className ->
    def found = new Expando(), kind = null
    if (className != null) { kind = new Expando(); kind.getName = { className } }
    found.getName = { name }
    found.getPathClass = { kind }
    found
}
def play = { objects ->
    def notes = [imported: [], exported: [], colours: [:]]
    def server = new Expando(), metadata = new Expando()
    metadata.getName = { 'S-17.x.svs' }
    server.getMetadata = { metadata }
    def binding = new Binding([
        PROJECT_BASE_DIR: args[1],
        buildFilePath: { folder, name -> "${folder}/${name}".toString() },
        getPathClass: { name -> def one = new Expando(); one.setColor = { notes.colours[name] = it }; one },
        getColorRGB: { red, green, blue -> [red, green, blue] },
        getQuPath: { null },
        getCurrentServer: { server },
        getAllObjects: { root -> objects },
        getAnnotationObjects: { objects },
        importObjectsFromFile: { notes.imported << it },
        exportObjectsToGeoJson: { found, path, option -> notes.exported << [found.size(), path, option] },
    ])
    new GroovyShell(binding).evaluate(script)
    notes
}
def marked = [thing('GCE evidence #1', 'accept'), thing(null, 'Missed'), thing(null, 'Tumor'), thing(null, null)]
println '=' + groovy.json.JsonOutput.toJson([play([]), play(marked)])
"""


def test_the_script_is_written_by_the_command_and_names_classes_that_are_understood(tmp_path):
    result = CliRunner().invoke(
        app, ["review", "--script", str(tmp_path / "out" / "review.groovy")]
    )
    assert result.exit_code == 0, result.output
    assert (tmp_path / "out" / "review.groovy").read_text() == SCRIPT
    assert [mark_of(name) for name in ("accept", "reject", "missed") if f"'{name}'" in SCRIPT] == [
        "accept", "reject", "missed",
    ]  # fmt: skip
    for shown in (EVIDENCE, ATTENTION):
        assert f"'{shown.name}'" in SCRIPT
        assert str(list(shown.color)) in SCRIPT


def find_java():
    """The folder of the Java that groovy shall use, as its start script wants it."""
    java = shutil.which("java")
    return os.environ.get("JAVA_HOME") or (java and str(Path(java).resolve().parent.parent))


def test_the_script_imports_the_evidence_of_the_open_image_and_exports_its_marks(tmp_path):
    groovy, java = shutil.which("groovy"), find_java()
    if groovy is None or java is None:
        pytest.skip("no groovy here; Debian's packages groovy and default-jre run the script")
    (tmp_path / "script.groovy").write_text(SCRIPT)
    (tmp_path / "player.groovy").write_text(PLAYED)
    evidence = tmp_path / "evidence" / "S-17.x" / "evidence.geojson"
    evidence.parent.mkdir(parents=True)
    evidence.write_text("{}")
    done = subprocess.run(
        [groovy, "player.groovy", "script.groovy", str(tmp_path)],
        cwd=tmp_path, env={**os.environ, "JAVA_HOME": java}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    first, again = json.loads(done.stdout.split("\n=")[-1])
    assert first["imported"] == [str(evidence)]
    assert first["exported"] == []
    assert first["colours"]["GCE evidence"] == list(EVIDENCE.color)
    assert again["imported"] == []
    assert again["exported"] == [
        [2, str(tmp_path / "reviews" / "S-17.x.geojson"), "FEATURE_COLLECTION"]
    ]
    assert "1 annotations have no class and are not saved" in done.stdout
