"""Files of weights: what is read, what is refused in one sentence, and that nothing in a file is ever run."""

import os
import pickle
import warnings

import pytest
import torch
from safetensors.torch import save_file

from builders import make_cohort
from builders.authors import (
    EXPECTED,
    authors_bag,
    authors_checkpoint,
    authors_cohort,
    authors_weights,
    has_parity,
    parity_facts,
    small_checkpoint,
)
from gcemil.config import HostSettings, HostWeights
from gcemil.errors import UsageError, WeightsError
from gcemil.hosts.table import HOSTS, create_host
from gcemil.runs import checkpoint
from gcemil.runs.weights import read_pretrained_host


@pytest.fixture(scope="module")
def cohorts(tmp_path_factory):
    """A cohort of the width that each of the authors' checkpoints reads, by its name."""
    folder = tmp_path_factory.mktemp("cohorts")

    class Made(dict):
        def __missing__(self, name):
            return self.setdefault(name, authors_cohort(name, folder / name, n_cases=2))

    return Made()


def host_of(given, cohort):
    host = create_host(
        given.settings.name,
        in_dim=cohort.card.feature_dim,
        n_outputs=cohort.n_outputs,
        gate_mode=given.settings.gate_mode,
        options=given.settings.options,
    )
    host.load_state_dict(given.tensors)
    return host.eval()


def saved(folder, content, name="weights.pt"):
    torch.save(content, folder / name)
    return folder / name


@pytest.mark.parametrize("name", EXPECTED)
@torch.no_grad()
def test_a_file_in_the_authors_naming_gives_the_authors_numbers(tmp_path, cohorts, name):
    given = read_pretrained_host(
        saved(tmp_path, authors_checkpoint(name)), HostSettings(name=name), cohorts[name]
    )
    found = host_of(given, cohorts[name])(torch.from_numpy(authors_bag(name))).logits
    block, key = EXPECTED[name]
    expected = torch.tensor(parity_facts(name)["outputs"][block][key]).flatten()
    if len(expected) == 1:
        expected = torch.cat([torch.zeros(1), expected])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in HOSTS if has_parity(name)])
def test_the_sizes_of_every_host_are_read_from_its_file(tmp_path, cohorts, name):
    path = saved(tmp_path, authors_checkpoint(name))
    given = read_pretrained_host(path, HostSettings(name=name), cohorts[name])
    assert given.settings.options
    assert len(given.sha256) == 64
    assert "0 is benign, 1 is malignant" in given.notes[0]
    host_of(given, cohorts[name])


def test_safetensors_are_read(tmp_path, cohorts):
    save_file(authors_weights("clam_sb"), tmp_path / "w.safetensors")
    given = read_pretrained_host(
        tmp_path / "w.safetensors", HostSettings(name="clam_sb"), cohorts["clam_sb"]
    )
    pickled = read_pretrained_host(
        saved(tmp_path, authors_weights("clam_sb")),
        HostSettings(name="clam_sb"),
        cohorts["clam_sb"],
    )
    assert all(torch.equal(one, pickled.tensors[key]) for key, one in given.tensors.items())


def plain_clam(dropout):
    """CLAM_SB with gate=False, as its authors name it; without dropout the lists are shorter."""
    torch.manual_seed(0)
    at, last = (3, 3) if dropout else (2, 2)
    shapes = {
        "attention_net.0": (16, 8), f"attention_net.{at}.module.0": (6, 16),
        f"attention_net.{at}.module.{last}": (1, 6), "classifiers": (2, 16),
        "instance_classifiers.0": (2, 16), "instance_classifiers.1": (2, 16),
    }  # fmt: skip
    weights = {f"{key}.weight": torch.randn(shape) for key, shape in shapes.items()}
    return (
        weights | {f"{key}.bias": torch.randn(shape[0]) for key, shape in shapes.items()},
        at,
        last,
    )


def plainly(features, theirs, names):
    """Attention pooling without the sigmoid branch, written out."""
    first, inner, last, head = names

    def layer(name, rows):
        return rows @ theirs[f"{name}.weight"].T + theirs[f"{name}.bias"]

    tokens = layer(first, features).relu()
    attention = torch.softmax(layer(last, layer(inner, tokens).tanh()).squeeze(1), dim=0)
    return layer(head, attention @ tokens)


@pytest.mark.parametrize("dropout", [True, False])
def test_attention_without_its_gate_is_the_gated_one_held_open(tmp_path, dropout):
    cohort = make_cohort(tmp_path / "c", n_cases=2)
    theirs, at, last = plain_clam(dropout)
    given = read_pretrained_host(saved(tmp_path, theirs), HostSettings(name="clam_sb"), cohort)
    features = torch.randn(9, 8)
    names = (
        "attention_net.0",
        f"attention_net.{at}.module.0",
        f"attention_net.{at}.module.{last}",
        "classifiers",
    )
    with torch.no_grad():
        found = host_of(given, cohort)(features).logits
    torch.testing.assert_close(found, plainly(features, theirs, names))


def test_names_of_our_own_class_are_read_with_the_options_given(tmp_path):
    cohort = make_cohort(tmp_path / "c", n_cases=2)
    host = create_host("dtfd", in_dim=8, n_outputs=2, options={"hidden": 4})
    path = saved(tmp_path, host.state_dict())
    given = read_pretrained_host(path, HostSettings(name="dtfd", options={"hidden": 4}), cohort)
    assert all(torch.equal(one, host.state_dict()[key]) for key, one in given.tensors.items())
    with pytest.raises(
        WeightsError, match=r"attention.content.weight \(4, 512\) where \(128, 512\) was expected"
    ):
        read_pretrained_host(path, HostSettings(name="dtfd"), cohort)


class Hostile:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (str(self.mark),)


@pytest.mark.parametrize("nested", [False, True])
def test_a_pickle_with_code_runs_nothing(tmp_path, nested):
    cohort = make_cohort(tmp_path / "c", n_cases=2)
    hostile = Hostile(tmp_path / "owned")
    content = {**authors_weights("abmil"), "attention_w.bias": hostile} if nested else hostile
    path = saved(tmp_path, content)
    (tmp_path / "bare.pkl").write_bytes(pickle.dumps(content))
    for one in (path, tmp_path / "bare.pkl"):
        with pytest.raises(
            WeightsError,
            match=r"(holds Python objects beside tensors|is not a file of weights).*state_dict",
        ):
            read_pretrained_host(one, HostSettings(name="abmil"), cohort)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    "kind",
    [
        "truncated",
        "text",
        "empty",
        "tensor",
        "numbers",
        "quantized",
        "safetensors",
        "folder",
        "none",
    ],
)
def test_a_damaged_or_foreign_file_is_one_sentence(tmp_path, kind):
    cohort = make_cohort(tmp_path / "c", n_cases=2)
    path = saved(tmp_path, authors_weights("abmil"))
    whole = path.read_bytes()
    if kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind in ("text", "empty"):
        path.write_bytes(b"epoch,loss\n" if kind == "text" else b"")
    elif kind in ("tensor", "numbers"):
        torch.save(torch.zeros(3) if kind == "tensor" else {"epoch": 3}, path)
    elif kind == "quantized":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.save(
                {"head.bias": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)}, path
            )
    elif kind == "safetensors":
        save_file({"a": torch.zeros(9)}, path)
        path.write_bytes(path.read_bytes()[:-5])
    elif kind in ("folder", "none"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
    with pytest.raises(WeightsError, match=r"weights.pt (is|holds|does) .*\.$"):
        read_pretrained_host(path, HostSettings(name="abmil"), cohort)


def test_weights_that_are_not_finite_are_named(tmp_path, cohorts):
    tensors = authors_weights("clam_sb")
    tensors["classifiers.bias"][0] = torch.nan
    with pytest.raises(WeightsError, match=r"NaN or infinite numbers in head\.bias"):
        read_pretrained_host(
            saved(tmp_path, tensors), HostSettings(name="clam_sb"), cohorts["clam_sb"]
        )


def test_what_does_not_fit_the_cohort_is_said_with_both_numbers(tmp_path, cohorts):
    path = saved(tmp_path, authors_weights("clam_sb"))
    with pytest.raises(WeightsError, match=r"features of width 1024, but .* has width 800"):
        read_pretrained_host(path, HostSettings(name="clam_sb"), cohorts["abmil"])
    three = make_cohort(tmp_path / "c", n_cases=3, dim=1024, classes=("a", "b", "c"))
    with pytest.raises(WeightsError, match=r"has 2 outputs, but .* needs 3 \(a, b, c\)"):
        read_pretrained_host(path, HostSettings(name="clam_sb"), three)
    with pytest.raises(UsageError, match=r"has hidden 256, but host.options.hidden is 64"):
        read_pretrained_host(
            path, HostSettings(name="clam_sb", options={"hidden": 64}), cohorts["clam_sb"]
        )


def test_tensors_of_another_host_are_named(tmp_path, cohorts):
    path = saved(tmp_path, authors_weights("clam_sb"))
    with pytest.raises(
        WeightsError, match=r"weights.pt: .*missing: cls_token.*left over: attention_net"
    ):
        read_pretrained_host(path, HostSettings(name="transmil"), cohorts["transmil"])


def test_a_header_that_lies_is_refused(tmp_path):
    cohort = make_cohort(tmp_path / "c", n_cases=2)
    checkpoint.save_tensors(
        tmp_path / "w.safetensors", {"a": torch.zeros(2)}, {"settings": {"epochs": -1}}
    )
    with pytest.raises(WeightsError, match=r"w.safetensors"):
        read_pretrained_host(tmp_path / "w.safetensors", HostSettings(name="abmil"), cohort)


class MilLabAbmil(torch.nn.Module):
    """ABMIL with the module names of MIL-Lab, gated or not."""

    def __init__(self, *, gated, n_outputs=2):
        super().__init__()
        nn = torch.nn
        self.patch_embed = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.global_attn = nn.Module()
        if gated:
            self.global_attn.attention_a = nn.Sequential(
                nn.Linear(16, 6), nn.Tanh(), nn.Dropout(0.25)
            )
            self.global_attn.attention_b = nn.Sequential(
                nn.Linear(16, 6), nn.Sigmoid(), nn.Dropout(0.25)
            )
            self.global_attn.attention_c = nn.Linear(6, 1)
        else:
            self.global_attn.module = nn.Sequential(
                nn.Linear(16, 6), nn.Tanh(), nn.Dropout(0), nn.Linear(6, 1)
            )
        self.classifier = nn.Linear(16, n_outputs)
        self.gated = gated

    def forward(self, features):
        tokens, pool = self.patch_embed(features), self.global_attn
        scores = (
            pool.attention_c(pool.attention_a(tokens) * pool.attention_b(tokens))
            if self.gated
            else pool.module(tokens)
        )
        return self.classifier(torch.softmax(scores, dim=0).T @ tokens)[0]


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("prefix", ["", "model."])
@torch.no_grad()
def test_abmil_in_mil_labs_naming_gives_its_numbers(tmp_path, gated, prefix):
    cohort = make_cohort(tmp_path / "c", n_cases=2)
    torch.manual_seed(0)
    theirs = MilLabAbmil(gated=gated).eval()
    path = saved(tmp_path, {prefix + key: one for key, one in theirs.state_dict().items()})
    given = read_pretrained_host(path, HostSettings(name="abmil"), cohort)
    assert given.settings.options == {"width": 16, "hidden": 6}
    features = torch.randn(9, 8)
    torch.testing.assert_close(host_of(given, cohort)(features).logits, theirs(features))


@torch.no_grad()
def test_a_model_for_other_classes_is_refused_or_given_a_new_head(tmp_path):
    cohort = make_cohort(tmp_path / "c", n_cases=2)
    theirs = MilLabAbmil(gated=True, n_outputs=5).state_dict()
    path = saved(tmp_path, theirs)
    with pytest.raises(
        WeightsError, match=r"has 5 outputs, .* needs 2 .*train .*--host abmil --host-weights"
    ):
        read_pretrained_host(path, HostSettings(name="abmil"), cohort)
    weights = HostWeights(source=str(path), frozen=False)
    given = read_pretrained_host(path, HostSettings(name="abmil", weights=weights), cohort)
    assert "the head starts anew" in given.notes[0]
    assert given.tensors["head.weight"].shape == (2, 16)
    assert torch.equal(given.tensors["project.0.weight"], theirs["patch_embed.0.weight"])
    again = read_pretrained_host(path, HostSettings(name="abmil", weights=weights), cohort)
    assert torch.equal(given.tensors["head.weight"], again.tensors["head.weight"])


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("projected", [True, False])
@torch.no_grad()
def test_torchmils_abmil_gives_its_numbers(tmp_path, gated, projected):
    from torchmil.models import ABMIL

    cohort = make_cohort(tmp_path / "c", n_cases=2)
    torch.manual_seed(0)
    layers = (
        torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU())
        if projected
        else torch.nn.Identity()
    )
    theirs = ABMIL(in_shape=(8,), att_dim=6, gated=gated, feat_ext=layers).eval()
    path = saved(tmp_path, theirs.state_dict())
    given = read_pretrained_host(path, HostSettings(name="abmil"), cohort)
    features = torch.randn(9, 8)
    found = host_of(given, cohort)(features)
    logit, attention = theirs(features.unsqueeze(0), return_att=True)
    torch.testing.assert_close(found.logits, torch.cat([torch.zeros(1), logit]))
    torch.testing.assert_close(found.scores, attention[0])
    assert any("activations" in note for note in given.notes)


def test_a_checkpoint_of_another_host_is_recognised(tmp_path):
    cohort = make_cohort(tmp_path / "c", n_cases=2)
    path = saved(tmp_path, small_checkpoint("clam_mb", in_dim=8))
    with pytest.raises(
        WeightsError, match=r"attention_c.weight .*It is a 'clam_mb': give --host clam_mb"
    ):
        read_pretrained_host(path, HostSettings(name="clam_sb"), cohort)
    assert read_pretrained_host(path, HostSettings(name="clam_mb"), cohort).settings.options == {
        "width": 16,
        "hidden": 8,
    }


OWN_HOST = """
import torch


class MeanPool(torch.nn.Module):
    def __init__(self, in_dim, n_outputs):
        super().__init__()
        self.head = torch.nn.Linear(in_dim, n_outputs)

    def forward(self, features):
        return self.head(features.mean(dim=0))
"""


def test_names_that_dataparallel_made_inside_a_class_of_the_users_own_are_read(
    tmp_path, monkeypatch
):
    (tmp_path / "my_parallel_host.py").write_text(OWN_HOST)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("GCEMIL_TRUST_HOSTS", "")
    cohort = make_cohort(tmp_path / "c", n_cases=2)
    weight, bias = torch.randn(2, 8), torch.randn(2)
    path = saved(tmp_path, {"head.module.weight": weight, "head.module.bias": bias})
    given = read_pretrained_host(path, HostSettings(name="my_parallel_host:MeanPool"), cohort)
    assert sorted(map(str, given.tensors)) == ["model.head.bias", "model.head.weight"]
