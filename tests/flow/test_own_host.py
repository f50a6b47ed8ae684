"""Hosts that are not part of gcemil: a class of this module and plain modules through every command, and what is refused."""

import json
import re
import shutil
import sys
import textwrap
import types
from pathlib import Path

import pytest
import torch
from torch import nn

import gcemil
from builders import make_cohort
from builders.commands import refused
from builders.commands import succeeded as command
from builders.grids import small_grid
from gcemil.bags.folds import make_folds, read_fold, write_folds
from gcemil.benchmark.grid import RunKey, plan_work
from gcemil.benchmark.results import Results
from gcemil.benchmark.runner import Ending, execute
from gcemil.errors import RunError, UsageError
from gcemil.hosts import own
from gcemil.hosts.adapters import CallableHost
from gcemil.hosts.consent import consent_file
from gcemil.hosts.table import HOSTS, HostSpec, create_host, host_spec
from gcemil.viewer.session import ViewerSession

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "own_host.md"
OURS = "test_own_host:QuarterPool"
PLAIN = "test_own_host:PlainMean"


class QuarterPool(gcemil.MilHost):
    """Softmax pooling, sharper by an option: a host as a user would write it."""

    def __init__(self, in_dim, n_outputs, gate_mode="deletion", *, width=8, sharpness=1.0):
        super().__init__(in_dim, n_outputs, gate_mode)
        self.sharpness = sharpness
        self.project = nn.Linear(in_dim, width)
        self.score = nn.Linear(width, 1)
        self.head = nn.Linear(width, n_outputs)

    def embed(self, features):
        return gcemil.Embedded(torch.tanh(self.project(features)))

    def pool(self, embedded, coords, log_gates, target):
        scores = self.sharpness * self.score(embedded.tokens).squeeze(1)
        weights = torch.softmax(scores if log_gates is None else scores + log_gates, dim=0)
        bag_feature = weights @ embedded.tokens
        return gcemil.HostOutput(
            logits=self.head(bag_feature), bag_feature=bag_feature, scores=scores
        )


class PlainMean(nn.Module):
    """No host at all: features to logits."""

    def __init__(self, in_dim, n_outputs, hidden=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(in_dim, hidden), nn.Tanh(), nn.Linear(hidden, n_outputs)
        )

    def forward(self, features):
        return self.layers(features).mean(dim=0)


class PlainWithCoords(nn.Module):
    """Takes coordinates, names its sizes otherwise, and scores patches itself."""

    def __init__(self, dim, classes):
        super().__init__()
        self.layer = nn.Linear(dim, classes)

    def forward(self, features, coords):
        assert coords.shape == (len(features), 2)
        values = self.layer(features)
        return values.mean(dim=0), values[:, 0]


class HalfAHost(nn.Module):
    def embed(self, features):
        return features


class Forgetful(gcemil.MilHost):
    def __init__(self, in_dim, n_outputs):
        nn.Module.__init__(self)


class Narrow(gcemil.MilHost):
    def __init__(self, in_dim, n_outputs):
        super().__init__(in_dim - 1, n_outputs)


class WrongForm(QuarterPool):
    def forward(self, features, coords=None, *, gates=None, target=None):
        output = super().forward(features, coords, gates=gates, target=target)
        return gcemil.HostOutput(output.logits, output.bag_feature, output.scores[1:])


class Bare(QuarterPool):
    def forward(self, features, coords=None, *, gates=None, target=None):
        return super().forward(features, coords, gates=gates, target=target).logits


class Failing(QuarterPool):
    def embed(self, features):
        return features @ features


@pytest.fixture(autouse=True)
def no_consent_from_elsewhere(monkeypatch, tmp_path_factory):
    monkeypatch.setenv(own.TRUST_VARIABLE, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("settings")))
    monkeypatch.setattr(own, "_named_in_command", set())


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    made = make_cohort(
        tmp_path_factory.mktemp("own") / "cohort",
        n_cases=20,
        n_patches=8,
        dim=12,
        task="classification",
    )
    write_folds(made, make_folds(made))
    return made


@pytest.fixture(scope="module")
def trained(cohort, tmp_path_factory):
    """A run of this module's host, with an option that reaches its constructor."""
    out = tmp_path_factory.mktemp("own") / "run"
    command("train", cohort.folder, "--host", OURS, "--out", out, "--folds", "0", "--epochs", 1, "--jobs", 1,
            "--set", "host.options={sharpness: 2.0}")  # fmt: skip
    return out


class TestAHostOfThisModule:
    def test_the_run_records_its_import_path_and_its_options(self, trained):
        network, record = gcemil.load_network(checkpoint(trained, trust=OURS))
        assert record["settings"]["host"]["name"] == OURS
        assert type(network.host) is QuarterPool
        assert network.host.sharpness == 2.0

    def test_it_is_evaluated_diagnosed_explained_viewed_and_reported(self, cohort, trained):
        slide = read_fold(cohort, 0).slides("test")[0]
        trust = ("--trust-host", OURS)
        before = json.loads((trained / "fold_0" / "metrics.json").read_text())
        command("evaluate", trained, *trust)
        assert json.loads((trained / "fold_0" / "metrics.json").read_text()) == before
        command("diagnose", trained, "--only", "posthoc", "--jobs", 1, *trust)
        found = json.loads((trained / "fold_0" / "diagnostics" / "posthoc.json").read_text())
        rules = {row["labels"]["rule"] for row in found["rows"]}
        # What needs no knowledge of the host works for it; closed forms and LRP rules it does not have.
        assert {"saliency", "occlusion_blocks"} <= {rule.removeprefix("wrapped_") for rule in rules}
        assert not {"occlusion", "lrp"} & rules
        command("explain", trained, "--slide", slide, *trust)
        assert (trained / "fold_0" / "explain" / slide / "certificate.json").is_file()
        answer = command(
            "predict", trained, cohort.feature_file(slide), "--mode", "discrete", "--json", *trust
        )
        assert json.loads(answer)
        command("report", trained, *trust)
        assert OURS in (trained / "report.html").read_text()
        session = ViewerSession(trained)
        assert session.specs
        assert session.fold.host.sharpness == 2.0

    def test_a_grid_plans_and_runs_it(self, cohort, tmp_path):
        grid = small_grid(
            cohorts={"own": {"folder": str(cohort.folder)}}, hosts=[OURS], arms=["gce"], folds=[0],
            settings={"epochs": 1, "host.options": {"width": 4}}, diagnostics=["snr"],
        )  # fmt: skip
        path = tmp_path / "grid.yaml"
        path.write_text(grid.to_yaml())
        planned = json.loads(
            command("benchmark", path, "--out", tmp_path / "results", "--dry-run", "--json")
        )
        assert len(planned) == 3
        results = Results(tmp_path / "results")
        for step in plan_work(grid):
            # As in a worker that knows the grid and nothing else.
            own.os.environ[own.TRUST_VARIABLE] = ""
            assert execute(grid, results, step).ending == Ending.finished
        folder = results.folder / RunKey("own", OURS, "gce", None, 0, 0).path
        assert (folder / "diagnostics" / "snr.json").is_file()
        assert ":" not in str(folder.relative_to(results.folder))


class TestAPlainModule:
    def test_it_trains_with_evidence_and_is_diagnosed(self, cohort, tmp_path):
        command(
            f"train {cohort.folder} --host {PLAIN} --out {tmp_path} --folds 0 --epochs 1 --jobs 1"
        )
        command("diagnose", tmp_path, "--only", "snr", "--jobs", 1, "--trust-host", PLAIN)
        network, _ = gcemil.load_network(tmp_path / "fold_0" / "checkpoint.safetensors")
        assert isinstance(network.host, CallableHost)
        assert isinstance(network.host.model, PlainMean)
        assert (tmp_path / "fold_0" / "diagnostics" / "snr.json").is_file()

    def test_sizes_may_come_from_the_options_and_coords_and_scores_are_its_own(self):
        host = create_host(
            "test_own_host:PlainWithCoords", in_dim=3, n_outputs=2, options={"dim": 3, "classes": 2}
        ).eval()
        features = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
        output = host(features, torch.zeros(5, 2, dtype=torch.long))
        torch.testing.assert_close(output.scores, host.model.layer(features)[:, 0])


def test_a_tenth_host_is_one_file_and_one_line(cohort, tmp_path, monkeypatch):
    """A module in gcemil/hosts and an entry of its table are all that train, diagnose, explain and a grid need."""
    module = types.ModuleType("gcemil.hosts.tenth")
    module.Tenth = type("Tenth", (QuarterPool,), {"__module__": "gcemil.hosts.tenth"})
    monkeypatch.setitem(sys.modules, "gcemil.hosts.tenth", module)
    monkeypatch.setitem(HOSTS, "tenth", HostSpec("gcemil.hosts.tenth", "Tenth"))
    out, slide = tmp_path / "run", read_fold(cohort, 0).slides("test")[0]
    command(f"train {cohort.folder} --host tenth --out {out} --folds 0 --epochs 1 --jobs 1")
    command("diagnose", out, "--only", "snr", "--jobs", 1)
    command("explain", out, "--slide", slide)
    assert (out / "fold_0" / "diagnostics" / "snr.json").is_file()
    assert (out / "fold_0" / "explain" / slide / "certificate.json").is_file()
    grid = small_grid(cohorts={"own": {"folder": str(cohort.folder)}}, hosts=["tenth"], folds=[0])
    (tmp_path / "grid.yaml").write_text(grid.to_yaml())
    planned = command(
        "benchmark", tmp_path / "grid.yaml", "--out", tmp_path / "results", "--dry-run", "--json"
    )
    assert json.loads(planned)


def test_a_host_that_cannot_be_made_begins_no_run(cohort, tmp_path):
    for name in ("nowhere_to_be_found:Host", "test_own_host:PlainWithCoords"):
        refused("train", cohort.folder, "--host", name, "--out", tmp_path / "run", "--jobs", 2)
        assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nowhere_to_be_found:Host", {}, r"module 'nowhere_to_be_found' cannot be imported \(No module named"),
        ("test_own_host:Absent", {}, "there is no 'Absent' in 'test_own_host'. There are: .*QuarterPool"),
        ("test_own_host:PAGE", {}, "is not a host but a .*Path: a host is a subclass of torch.nn.Module"),
        ("json:JSONDecoder", {}, "is not a host: a host is a subclass"),
        ("my host:Class", {}, "'my host:Class' is not an import path. Write it as package.module:Name"),
        ("../evil:Class", {}, "is not an import path"),
        ("resnet", {}, "Unknown host 'resnet'. Choose one of: abmil, .*; or name a class of your own"),
        (OURS, {"colour": 1}, "has no option 'colour'. It accepts: width, sharpness"),
        (OURS, {"in_dim": 9}, "has no option 'in_dim'. It accepts: width, sharpness"),
        (OURS, {"width": "wide"}, r"cannot be made with the options {'width': 'wide'} \(TypeError"),
        ("test_own_host:PlainWithCoords", {}, "its constructor needs 'dim'.* --set host.options.dim=VALUE"),
        ("test_own_host:HalfAHost", {}, "implements the Host protocol in part: it has no 'aggregate'"),
        ("test_own_host:Forgetful", {}, "has no 'in_dim', which the Host protocol names"),
        ("test_own_host:Narrow", {}, "should have in_dim 12 and has 11"),
        ("test_own_host:WrongForm", {}, r"scores of shape \(15,\) for 16 patches and 2 outputs; the shape must be \(16,\)"),
        ("test_own_host:Bare", {}, "returns Tensor for a bag, not gcemil.HostOutput"),
        ("test_own_host:Failing", {}, r"failed on a bag of 16 patches of width 12 \(RuntimeError: .*test_own_host.py line"),
    ],
)  # fmt: skip
def test_what_is_no_host_is_one_sentence(name, options, message):
    with pytest.raises(UsageError, match=message):
        create_host(name, in_dim=12, n_outputs=2, options=options)


class TestConsent:
    @pytest.fixture
    def foreign_run(self, cohort, tmp_path, monkeypatch):
        """Somebody else's run, and a module in the working folder that says when it is imported."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        (tmp_path / "their_hosts.py").write_text(
            f"from pathlib import Path\nPath('was_imported').touch()\nfrom {__name__} import QuarterPool as Theirs\n"
        )
        settings = gcemil.TrainSettings(
            host=gcemil.HostSettings(name="their_hosts:Theirs"), epochs=1
        )
        gcemil.train_run(cohort.folder, tmp_path / "run", settings, folds=[0], jobs=1)
        forget(tmp_path)
        monkeypatch.setenv(own.TRUST_VARIABLE, "")
        yield tmp_path / "run"
        sys.modules.pop("their_hosts", None)

    def test_no_command_imports_what_a_run_names_unasked(self, cohort, foreign_run):
        slide = read_fold(cohort, 0).slides("test")[0]
        for arguments in (
            ("diagnose", foreign_run, "--only", "snr", "--jobs", 1),
            ("explain", foreign_run, "--slide", slide),
            ("predict", foreign_run, cohort.feature_file(slide)),
            ("view", foreign_run, "--no-browser"),
            ("report", foreign_run, "--representations"),
            ("evaluate", foreign_run, "--trust-host", OURS),
        ):
            message = refused(*arguments)
            assert "names the host 'their_hosts:Theirs', which is not part of gcemil" in message
            assert "add --trust-host their_hosts:Theirs" in message
        message = refused(
            "train", cohort.folder, "--host-weights", foreign_run, "--freeze-host", "--out", "again"
        )
        assert "add --host their_hosts:Theirs" in message
        assert not Path("was_imported").exists()

    def test_consent_of_the_command_line_is_remembered_until_the_file_changes(
        self, foreign_run, tmp_path, monkeypatch
    ):
        command("evaluate", foreign_run, "--trust-host", "their_hosts:Theirs")
        other = shutil.copytree(foreign_run, tmp_path / "other")

        def as_a_new_process():
            forget(tmp_path)
            monkeypatch.setenv(own.TRUST_VARIABLE, "")
            own._named_in_command.clear()

        as_a_new_process()
        command("evaluate", foreign_run)
        as_a_new_process()
        assert "add --trust-host their_hosts:Theirs" in refused("evaluate", other)
        with Path("their_hosts.py").open("a") as file:
            file.write("# more\n")
        assert "has changed since you trusted it" in refused("evaluate", foreign_run)
        assert not Path("was_imported").exists()
        consent_file().write_text("{broken")
        assert "has changed" not in refused("evaluate", foreign_run)

    def test_who_trains_a_host_is_not_asked_again(self, cohort, tmp_path, monkeypatch):
        command("train", cohort.folder, "--host", PLAIN, "--out", tmp_path / "run", "--folds", "0",
                "--epochs", 1, "--jobs", 1, "--no-gce")  # fmt: skip
        monkeypatch.setenv(own.TRUST_VARIABLE, "")
        command("evaluate", tmp_path / "run")

    def test_consent_by_environment_and_then_the_host_is_gone(self, foreign_run, monkeypatch):
        monkeypatch.setenv(own.TRUST_VARIABLE, f"{OURS}, their_hosts:Theirs")
        command("evaluate", foreign_run)
        assert Path("was_imported").exists()

        sys.modules.pop("their_hosts")
        Path("their_hosts.py").unlink()
        message = refused(
            "evaluate", foreign_run, "--trust-host", "their_hosts:Theirs", error=RunError
        )
        assert "checkpoint.safetensors cannot be opened without its host. " in message
        assert "module 'their_hosts' cannot be imported" in message


class TestRegisteredHosts:
    @pytest.fixture
    def installed(self, tmp_path, monkeypatch):
        """A package that registers two hosts, installed as pip leaves it."""

        def install(package, entries):
            info = tmp_path / f"{package}-1.0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(
                f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
            )
            (info / "entry_points.txt").write_text("[gcemil.hosts]\n" + "\n".join(entries))
            own._registered.cache_clear()

        monkeypatch.syspath_prepend(tmp_path)
        yield install
        monkeypatch.undo()
        own._registered.cache_clear()

    def test_a_registered_name_needs_no_consent(self, installed, cohort, tmp_path):
        installed("lab_hosts", [f"quarter = {OURS}"])
        assert host_spec("quarter").is_own
        command(
            f"train {cohort.folder} --host quarter --out {tmp_path / 'run'} --folds 0 --epochs 1 "
            "--no-gce"
        )
        command("evaluate", tmp_path / "run")
        network, record = gcemil.load_network(
            tmp_path / "run" / "fold_0" / "checkpoint.safetensors"
        )
        assert (type(network.host), record["settings"]["host"]["name"]) == (QuarterPool, "quarter")


class TestThePage:
    """docs/howto/own_host.md: the host to copy, trained as the page says."""

    @pytest.fixture
    def written(self, cohort, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        (tmp_path / "my_hosts.py").write_text(block("class QueryPool"))
        (tmp_path / "cohorts").mkdir()
        (tmp_path / "cohorts" / "bracs").symlink_to(cohort.folder)
        yield tmp_path
        sys.modules.pop("my_hosts", None)

    def test_its_commands_run(self, written):
        for line in block("--host my_hosts:QueryPool").splitlines():
            arguments = line.split("#")[0].split()[1:]
            if arguments[0] == "train":
                arguments += ["--epochs", "1", "--folds", "0"]
            if arguments[0] == "diagnose":
                arguments += ["--only", "snr"]
            # A report takes seconds and is made above.
            if arguments[0] != "report":
                command(*arguments)
        assert (written / "runs" / "mine" / "diagnostics" / "snr.json").is_file()


def block(containing):
    """The fenced block of the page that contains this text."""
    fenced = re.findall(
        r"^```\w*\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    (found,) = [one for one in fenced if containing in one]
    return textwrap.dedent(found)


def checkpoint(run, *, trust):
    own.trust_host(trust)
    return run / "fold_0" / "checkpoint.safetensors"


def forget(folder):
    sys.modules.pop("their_hosts", None)
    (folder / "was_imported").unlink()
