"""The public functions on tensors: bags in, model, evidence and tables out."""

import ast
import dataclasses
import doctest
import inspect
import itertools
import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest
import torch
from pydantic import BaseModel

import gcemil
from gcemil.errors import BagError, InputError, UsageError

DIM = 12
GRID = 256 * np.stack(np.divmod(np.arange(40), 8)[::-1], axis=1)


def make_bags(n_bags=24, seed=0):
    """Half of the bags have four patches of a lesion in their first rows."""
    generator = torch.Generator().manual_seed(seed)
    bags = [torch.randn(40, DIM, generator=generator) for _ in range(n_bags)]
    for bag in bags[1::2]:
        bag[:4, 0] += 6
    return bags


LABELS = ["normal", "tumour"] * 12


@pytest.fixture(scope="module")
def fitted():
    return gcemil.fit([(bag, GRID) for bag in make_bags()], LABELS, epochs=12)


PUBLIC = [name for name in gcemil.__all__ if callable(getattr(gcemil, name))]


@pytest.mark.parametrize("name", PUBLIC)
def test_the_examples_of_the_docstrings_run(name, monkeypatch):
    # The example of trust_host sets the variable itself.
    monkeypatch.setenv("GCEMIL_TRUST_HOSTS", "")
    runner = doctest.DocTestRunner()
    # An example has no other names than those it imports.
    for example in doctest.DocTestFinder().find(
        getattr(gcemil, name), name, module=False, globs={}
    ):
        runner.run(example)
    assert runner.tries
    assert not runner.failures


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_callable_has_arguments_returns_and_an_example(name):
    value = getattr(gcemil, name)
    faults = find_class_faults(value) if inspect.isclass(value) else find_faults(value)
    assert not faults


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (lambda bag: bag, "no docstring"),
        (type("Empty", (), {}), "no docstring"),
        (type("Thin", (), {"__doc__": "A class.", "__init__": lambda self, a: None}), "a"),
        (
            type(
                "Silent", (), {"__doc__": "A class.\n\nExample:\n    >>> 1", "act": lambda self: 1}
            ),
            "act: no docstring",
        ),
    ],
)
def test_a_public_callable_without_documentation_is_found(broken, fault):
    faults = find_class_faults(broken) if inspect.isclass(broken) else find_faults(broken)
    assert any(fault in one for one in faults)


def read_sections(value):
    """The sections of a docstring, Google style, by name."""
    text = vars(value)["__doc__"] if inspect.isclass(value) else value.__doc__
    parts = re.split(r"^(\w+):$", inspect.cleandoc(text or ""), flags=re.M)
    return dict(zip(["", *parts[1::2]], parts[::2], strict=True))


def list_parameters(function):
    """Names of its parameters, but for self and cls."""
    names = inspect.signature(function).parameters
    return [name for name in names if name not in ("self", "cls")]


def find_faults(function, used_in=""):
    """Parts that the docstring of a function lacks; its class may show it in `used_in`."""
    sections = read_sections(function)
    if not sections[""]:
        return ["no docstring"]
    documented = re.findall(r"^    \**(\w+):", sections.get("Args", ""), flags=re.M)
    faults = [f"no {one} in Args" for one in list_parameters(function) if one not in documented]
    if inspect.signature(function).return_annotation not in (None, "None"):
        faults += [] if {"Returns", "Yields"} & set(sections) else ["no Returns"]
    is_used = f".{function.__name__}(" in used_in or ">>>" in sections.get("Example", "")
    return faults if is_used else [*faults, "no Example"]


def find_class_faults(one):
    """Parts that the docstrings of a class, of its fields and of its public methods lack."""
    sections = read_sections(one)
    if not sections[""]:
        return ["no docstring"]
    faults = [] if ">>>" in sections.get("Example", "") else ["no Example"]
    listed = sections.get("Args", "") + sections.get("Attributes", "")
    documented = re.findall(r"^    (\w+):", listed, flags=re.M)
    if dataclasses.is_dataclass(one):
        described = describe_fields(one)
        wanted = [field for field in vars(one)["__annotations__"] if field not in described]
    elif issubclass(one, BaseModel):
        wanted = [key for key, field in one.model_fields.items() if not field.description]
    else:
        wanted = list_parameters(vars(one)["__init__"]) if has_constructor(one) else []
    faults += [f"{key} is not documented" for key in wanted if key not in documented]
    for name, member in vars(one).items():
        method = getattr(member, "__func__", member)
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        if method.__doc__ is None and any(hasattr(base, name) for base in one.__mro__[1:]):
            continue
        if Protocol not in one.__bases__:
            found = find_faults(method, sections.get("Example", ""))
            faults += [f"{name}: {fault}" for fault in found]
    return faults


def has_constructor(one):
    """Whether the class itself has a constructor in Python."""
    is_special = issubclass(one, BaseException) or Protocol in one.__bases__
    return not is_special and inspect.isfunction(vars(one).get("__init__"))


def describe_fields(one):
    """Fields of a class that have a docstring below them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0].body
    return {
        first.target.id
        for first, second in itertools.pairwise(body)
        if isinstance(first, ast.AnnAssign)
        and isinstance(second, ast.Expr)
        and isinstance(second.value, ast.Constant)
    }


def test_a_fitted_model_predicts_and_finds_the_lesion(fitted):
    bag = make_bags(2, seed=9)[1]
    assert fitted.classes == ("normal", "tumour")
    assert fitted.predict((bag, GRID))["tumour"] > 0.8
    evidence = fitted.explain((bag, GRID))
    assert evidence.prediction == pytest.approx(fitted.predict((bag, GRID)))
    assert set(evidence.indices) & {0, 1, 2, 3}
    assert evidence.scores.shape == (40,)
    assert evidence.kept.keys() == evidence.removed.keys() == {"normal", "tumour"}
    assert isinstance(evidence.verdict, str)


def test_the_evidence_of_a_fitted_model_has_a_vote():
    bags = make_bags()
    examples = {"lesion": bags[1][:4], "stroma": bags[0][:8]}
    model = gcemil.fit(bags, LABELS, anchors=examples, epochs=2)
    assert model.network.head.is_fitted
    assert model.network.head.has_vote


def test_training_is_repeatable_and_leaves_the_generator_of_the_user_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, second = (gcemil.fit(make_bags(), LABELS, epochs=2, seed=3) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    for name, tensor in first.network.state_dict().items():
        assert torch.equal(tensor, second.network.state_dict()[name]), name


def test_bags_in_memory_train_as_bags_on_disk_do(tmp_path):
    from gcemil.bags import store
    from gcemil.bags.memory import make_cohort

    in_memory = make_cohort(make_bags(), LABELS, tmp_path)
    for name, bag in in_memory.held.items():
        store.write(in_memory.feature_file(name), {"features": bag.features})
    in_memory.save()
    on_disk = gcemil.Cohort.load(tmp_path)
    one, other = gcemil.fit(make_bags(), LABELS, epochs=2), gcemil.fit(on_disk, epochs=2)
    assert one.predict(make_bags()[0]) == other.predict(make_bags()[0])
    assert len(gcemil.audit(one, on_disk)) == 3 * len(on_disk.bags)


class Item:
    """As torchmil's datasets give them."""

    def __init__(self, bag, label):
        self.X, self.Y, self.coords = bag, torch.tensor([float(label)]), torch.from_numpy(GRID)


@pytest.mark.parametrize(
    "items",
    [
        [Item(bag, number % 2) for number, bag in enumerate(make_bags())],
        [{"X": bag, "Y": torch.tensor(number % 2)} for number, bag in enumerate(make_bags())],
        [{"features": bag.numpy(), "label": number % 2} for number, bag in enumerate(make_bags())],
    ],
    ids=["attributes", "tensors", "arrays"],
)
def test_a_dataset_brings_its_own_labels(items):
    model = gcemil.fit(items, epochs=1)
    assert model.classes == ("0", "1")
    assert sum(model.predict(items[0]).values()) == pytest.approx(1)


def test_survival_takes_times_and_events():
    labels = [(float(10 - 5 * (number % 2) + number / 10), number % 3 > 0) for number in range(24)]
    model = gcemil.fit(make_bags(), labels, epochs=2)
    assert model.record["task"] == "survival"
    assert list(model.predict(make_bags()[0])) == ["risk"]
    table = gcemil.audit(model, make_bags()[:4])
    assert set(table.rule) == {"evidence", "attention", "random"}
    assert table.sufficiency_gap.notna().all()


def test_regression_takes_numbers_and_answers_in_their_unit(tmp_path):
    labels = [100.0 + 20 * (number % 2) + number / 10 for number in range(24)]
    model = gcemil.fit(make_bags(), labels, task="regression", epochs=15, seed=1)
    values = [model.predict(bag)["value"] for bag in make_bags()]
    assert np.corrcoef(values, labels)[0, 1] > 0.8
    assert 95 < min(values) < 110 < max(values) < 130
    evidence = gcemil.explain(model, make_bags()[1])
    assert evidence.prediction["value"] == pytest.approx(values[1])
    again = gcemil.load(model.save(tmp_path / "saved"))
    assert again.classes == ("value",)
    assert again.predict(make_bags()[1]) == model.predict(make_bags()[1])
    assert gcemil.audit(model, make_bags()[:4]).sufficiency_gap.notna().all()


@pytest.mark.parametrize("anchors", [3, {"lesion": make_bags()[1][:4], "other": make_bags()[0][:9]}], ids=["number", "examples"])  # fmt: skip
def test_anchors_are_a_number_examples_or_a_bank(anchors):
    model = gcemil.fit(make_bags(), LABELS, anchors=anchors, epochs=1)
    assert model.network.bank.n_anchors == (3 if anchors == 3 else 2)
    bank = gcemil.fit(make_bags(), LABELS, anchors=model.network.bank, epochs=1).network.bank
    assert bank.hash == model.network.bank.hash
    assert "anchor: lesion" in model.explain(make_bags()[1]).to_frame() or anchors == 3


def test_text_anchors_are_reached_through_pairs():
    projection = torch.randn(DIM, 5)
    bank = gcemil.AnchorBank(torch.randn(3, 5), ("a", "b", "c"), "text")
    patches = torch.cat(make_bags())
    pairs = patches, patches @ projection
    model = gcemil.fit(make_bags(), LABELS, anchors=bank, pairs=pairs, epochs=1)
    assert model.network.bank.prompts == ("a", "b", "c")
    wrapped = gcemil.wrap(model.loaded.host, bank, patches=patches, pairs=pairs)
    assert gcemil.explain(wrapped, make_bags()[0]).to_frame()["anchor: a"].notna().all()


class MeanModel(torch.nn.Module):
    """A module of the user, from features to logits."""

    def __init__(self, in_dim, n_outputs):
        super().__init__()
        self.head = torch.nn.Linear(in_dim, n_outputs)

    def forward(self, features):
        return self.head(features).max(dim=0).values


def test_a_class_of_the_user_is_trained(monkeypatch):
    monkeypatch.setitem(sys.modules, MeanModel.__module__, sys.modules[__name__])
    model = gcemil.fit(make_bags(), LABELS, host=MeanModel, epochs=1)
    assert isinstance(model.loaded.host.model, MeanModel)


def test_the_plain_host_predicts_and_has_no_evidence():
    model = gcemil.fit(make_bags(), LABELS, evidence=None, epochs=1)
    assert set(model.predict(make_bags()[0])) == {"normal", "tumour"}
    with pytest.raises(UsageError, match=r"gcemil\.wrap"):
        model.explain(make_bags()[0])


def test_a_model_is_the_same_after_save_and_load(fitted, tmp_path):
    again = gcemil.load(fitted.save(tmp_path / "model"))
    bag = (make_bags()[1], GRID)
    assert again.predict(bag) == fitted.predict(bag)
    assert np.array_equal(again.explain(bag).scores, fitted.explain(bag).scores)
    assert "in memory" in (tmp_path / "model" / "README.md").read_text()
    assert gcemil.load(again.save(tmp_path / "again")).predict(bag) == fitted.predict(bag)
    with pytest.raises(UsageError, match="not empty"):
        fitted.save(tmp_path / "model")
    with pytest.raises(UsageError, match="state_dict"):
        gcemil.save(fitted.network, tmp_path / "other")


def test_evidence_is_a_table_a_picture_and_a_file(fitted, tmp_path):
    evidence = fitted.explain((make_bags()[1], GRID))
    frame = evidence.to_frame()
    assert frame.selected.sum() == len(evidence.indices)
    assert frame[["x", "y"]].to_numpy().tolist() == GRID.tolist()
    written = json.loads(evidence.to_geojson(tmp_path / "bag.geojson").read_text())
    assert len(written["features"]) == len(evidence.indices)
    assert evidence.plot().size[0] > 100
    with pytest.raises(BagError, match="no coordinates"):
        fitted.explain(make_bags()[1]).plot()


def test_evidence_of_a_case_names_its_slides(fitted, tmp_path):
    slides = [
        gcemil.slide_bag(name, bag.numpy(), GRID)
        for name, bag in zip("ab", make_bags(2), strict=True)
    ]
    evidence = fitted.explain(gcemil.case_bag("case", slides))
    assert evidence.to_frame().slide_id.value_counts().to_dict() == {"a": 40, "b": 40}
    assert evidence.scores.shape == (80,)
    assert evidence.to_geojson(tmp_path / "b.geojson", "b").is_file()
    with pytest.raises(UsageError, match="a, b"):
        evidence.plot()


def lesion_model(features):
    """The logit is the largest of column 0: a true explanation keeps and moves the prediction."""
    lesion = features[:, 0].max() - 3
    return torch.stack([-lesion, lesion])


def test_an_audit_judges_any_explanation_of_any_module():
    rules = {
        "true": lambda bag: bag[:, 0],
        "mask": lambda bag: bag[:, 0] > 3,
        "wrong": lambda bag: -bag[:, 0],
    }
    table = gcemil.audit(lesion_model, make_bags(8)[1::2], rules, budget=0.1)
    verdicts = table.groupby("rule")[["sufficient@0.05", "necessary@0.05"]].mean()
    assert verdicts.loc["true"].tolist() == verdicts.loc["mask"].tolist() == [1, 1]
    assert verdicts.loc["wrong"].tolist() == [0, 0]
    assert set(table.rule) == {"true", "mask", "wrong", "random"}
    assert (table[table.rule != "mask"].n_selected == 4).all()
    assert table.phi_full.sub(table.phi_kept).abs().equals(table.sufficiency_gap)
    assert table.recoverability_gap.isna().all()
    assert (
        "true: its patches are sufficient and necessary on 4 of 4 bags (100 %, 95 % interval 51 to "
        "100 %), random ones on 0."
    ) in table.attrs["verdict"]


class Linear(torch.nn.Module):
    """Logits of a bag, in the form that is asked for."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, bag):
        if self.form == "batch axis":
            # Without the axis these would be logits of every patch.
            return bag.mean(dim=1)[:, :2]
        logits, scores = bag.mean(dim=0)[:2], bag[:, 0]
        return {
            "pair": (logits, scores),
            "dict": {"logits": logits[None], "attention": scores[None]},
            "clam": (logits[None], logits.softmax(0)[None], logits.argmax(), scores[None], {}),
            "clam_mb": (logits[None], None, None, torch.stack([torch.where(logits == logits.max(), one, -one) for one in scores], dim=1), {}),
        }[self.form]  # fmt: skip


@pytest.mark.parametrize("form", ["dict", "clam", "clam_mb"])
def test_models_answer_in_the_forms_that_are_common(form):
    expected = gcemil.audit(Linear("pair").eval(), make_bags(4))
    assert gcemil.audit(Linear(form).eval(), make_bags(4)).equals(expected)


def test_a_model_of_batches_is_given_an_axis_before_the_patches():
    bags = make_bags(4)
    table = gcemil.audit(Linear("batch axis").eval(), bags)
    expected = [torch.softmax(bag.mean(dim=0)[:2].double(), dim=0).max().item() for bag in bags]
    assert table[table.rule == "random"].phi_full.tolist() == pytest.approx(expected, abs=1e-5)


def dropped(bag):
    return torch.nn.functional.dropout(bag, 0.5, training=True).mean(dim=0)[:2]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (dropped, r"two outputs for bag 'bag_0'.*model\.eval\(\)"),
        (lambda bag: bag.mean(dim=0)[:2].softmax(dim=0), "look like probabilities"),
    ],
)
def test_an_audit_warns_of_models_that_it_cannot_judge(model, words):
    with pytest.warns(UserWarning, match=words):
        gcemil.audit(model, make_bags(2))


def test_an_audit_of_gates_measures_recoverability():
    gates = lambda bag: (bag[:, 0] > 3).float()  # noqa: E731
    table = gcemil.audit(lesion_model, make_bags(4)[1::2], gates, budget=0.1, gates=True)
    own = table[table.rule == "scores"]
    assert (own.recoverability_gap < 1e-6).all()
    assert own["recoverable@0.01"].all()


def test_an_audit_of_a_fitted_model_has_its_evidence_and_its_attention(fitted):
    table = gcemil.audit(fitted, [(bag, GRID) for bag in make_bags()[:4]], tolerances=[0.05])
    assert list(table.rule.unique()) == ["evidence", "attention", "random"]
    own = table[table.rule == "evidence"].iloc[1]
    evidence = fitted.explain((make_bags()[1], GRID))
    assert own.phi_kept == pytest.approx(
        evidence.kept[max(evidence.prediction, key=evidence.prediction.get)]
    )
    assert own["sufficient@0.05"] == evidence.slides[0].is_sufficient
    assert own["necessary@0.05"] == evidence.slides[0].is_necessary


def test_a_torchmil_model_is_wrapped_and_audited():
    models = pytest.importorskip("torchmil.models")
    model = models.ABMIL(in_shape=(DIM,), criterion=torch.nn.BCEWithLogitsLoss()).eval()
    assert list(gcemil.audit(model, make_bags(2)).rule.unique()) == ["attention", "random"]
    wrapped = gcemil.wrap(model, patches=torch.cat(make_bags(6)))
    assert len(gcemil.explain(wrapped, make_bags(1)[0]).prediction) == 2


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: gcemil.fit(make_bags(), LABELS[:3]), UsageError, "24 bags need as many labels"),
        (lambda: gcemil.fit(make_bags()), UsageError, "Every bag needs a label"),
        (lambda: gcemil.fit(make_bags(), ["a"] * 24), UsageError, "two classes"),
        (lambda: gcemil.fit(make_bags(), LABELS, classes=["x", "y"]), UsageError, "is not among x, y"),
        (lambda: gcemil.fit(make_bags(), [(0, 1)] * 24), UsageError, "above 0"),
        (lambda: gcemil.fit(make_bags(), [n / 7 for n in range(24)]), UsageError, 'Give task="regression"'),
        (lambda: gcemil.fit(make_bags(), ["a"] * 24, task="regression"), UsageError, "not a finite number"),
        (lambda: gcemil.fit(make_bags(), [1.5] * 24, task="regression"), UsageError, "nothing to predict"),
        (lambda: gcemil.fit([torch.zeros(5)] * 2, [0, 1]), BagError, "shape"),
        (lambda: gcemil.fit([torch.full((5, 3), np.nan)] * 2, [0, 1]), BagError, "NaN"),
        (lambda: gcemil.fit([torch.zeros(5, 3), torch.zeros(5, 4)], [0, 1]), InputError, "one width"),
        (lambda: gcemil.fit([(torch.zeros(5, 3), GRID)] * 2, [0, 1]), BagError, "coords of shape"),
        (lambda: gcemil.fit(make_bags(2), [0, 1]), UsageError, "none for validation"),
        (lambda: gcemil.fit(make_bags(), LABELS, epoch=3), UsageError, "epoch"),
        (lambda: gcemil.fit(make_bags(), LABELS, host="abmill"), UsageError, "abmil"),
        (lambda: gcemil.wrap(lambda bag: bag.mean(0)), UsageError, "patches="),
        (lambda: gcemil.audit(MeanModel(DIM, 2), make_bags(1)), UsageError, r"model\.eval"),
        (lambda: gcemil.audit(lambda bag: bag.mean(0), []), UsageError, "at least one bag"),
        (lambda: gcemil.audit(lambda bag: bag.mean(0), make_bags(1), lambda bag: bag[0]), UsageError, "40 finite scores"),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused_with_a_remedy(call, error, words):
    with pytest.raises(error, match=words):
        call()


class StampForm(torch.nn.Module):
    """The form of STAMP's VisionTransformer: a batch axis, keyword coordinates, and a class token that reads all tiles."""

    def __init__(self, in_dim, n_outputs, dim=8):
        super().__init__()
        self.class_token = torch.nn.Parameter(torch.randn(dim))
        self.project_features = torch.nn.Linear(in_dim, dim)
        self.attention = torch.nn.MultiheadAttention(dim, 2, batch_first=True)
        self.mlp_head = torch.nn.Linear(dim, n_outputs)

    def forward(self, bags, *, coords, mask):
        tokens = torch.cat([self.class_token.expand(1, 1, -1), self.project_features(bags)], dim=1)
        places = torch.cat([torch.zeros(1, 1, 2), coords], dim=1)
        tokens = tokens + 1e-4 * places.sum(dim=2, keepdim=True)
        attended, _ = self.attention(tokens, tokens, tokens, need_weights=False)
        return self.mlp_head((tokens + attended)[:, 0])


def test_the_documented_wrapper_of_a_stamp_transformer_is_explained():
    page = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
    code = page.partition("class StampViT")[2].partition("```")[0]
    features, coords = torch.randn(30, 8), 256 * torch.randint(0, 9, (30, 2))
    names = {"torch": torch, "gcemil": gcemil, "vit": StampForm(8, 2).eval(), "features": features,
             "coords": coords, "training_patches": torch.randn(60, 8)}  # fmt: skip
    exec(f"class StampViT{code}", names)
    expected = names["vit"](features[None], coords=0.25 * coords[None].float(), mask=None)[0]
    found = list(names["evidence"].prediction.values())
    assert found == pytest.approx(torch.softmax(expected, 0).tolist(), abs=1e-5)


def test_paths_may_be_strings(classification_runs, tmp_path):
    cohort, run = str(classification_runs.cohort), str(tmp_path / "run")
    assert gcemil.Cohort.load(cohort).folder == classification_runs.cohort
    settings = gcemil.TrainSettings(epochs=1, min_steps=1, min_epochs=1, evidence=None)
    gcemil.train_run(cohort, run, settings, folds=[0], jobs=1)
    loaded, _ = gcemil.load_network(f"{run}/fold_0/checkpoint.safetensors")
    gcemil.save_pretrained(f"{run}/fold_0", str(tmp_path / "given"))
    again = gcemil.load(str(tmp_path / "given")).network.state_dict()
    assert all(torch.equal(again[name], one) for name, one in loaded.network.state_dict().items())
    with pytest.raises(
        UsageError, match=r"Open the model first: gcemil\.explain\(gcemil\.load\('runs/mine'\)"
    ):
        gcemil.explain("runs/mine", torch.randn(4, 8))


def test_an_untrained_host_says_so_and_one_with_other_weights_does_not():
    patches = torch.randn(40, 8)
    fresh, other = (gcemil.create_host("abmil", in_dim=8, n_outputs=2) for _ in range(2))
    with pytest.warns(UserWarning, match="it is untrained, and its evidence means nothing"):
        gcemil.wrap(fresh, 2, patches=patches)
    other.load_state_dict(fresh.state_dict())
    gcemil.wrap(other, 2, patches=patches)
