"""Black boxes as hosts: where gates act, which score they get, what is refused."""

import numpy as np
import pytest
import torch
import torchmil.models
from torch import nn

from gcemil.errors import UsageError
from gcemil.hosts.adapters import CallableHost, TorchmilHost

WEIGHTS = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
FEATURES = torch.tensor([[1.0, 0.0], [0.0, 3.0], [2.0, 1.0]])
COORDS = torch.tensor([[0, 0], [256, 0], [512, 0]])


def mean_model(features):
    """Logits (mean of x, twice the mean of y)."""
    return WEIGHTS @ features.mean(dim=0)


def test_logits_are_the_models_own():
    output = CallableHost(mean_model, 2, 2)(FEATURES)
    torch.testing.assert_close(output.logits, torch.tensor([1.0, 8 / 3]))
    torch.testing.assert_close(output.bag_feature, output.logits)


def test_soft_gates_multiply_and_zero_gates_remove():
    gates = torch.tensor([0.5, 1.0, 0.0])
    removed = CallableHost(mean_model, 2, 2)(FEATURES, gates=gates).logits
    torch.testing.assert_close(removed, torch.tensor([0.25, 3.0]))
    null_row = CallableHost(mean_model, 2, 2, "paper")(FEATURES, gates=gates).logits
    torch.testing.assert_close(null_row, torch.tensor([0.5 / 3, 2.0]))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_slope_is_the_derivative_of_the_predicted_output_by_each_gate(mode):
    with mode():
        output = CallableHost(mean_model, 2, 2)(FEATURES.clone())
    torch.testing.assert_close(output.scores, torch.tensor([0.0, 2.0, 2 / 3]))
    assert not output.scores.requires_grad


def test_slope_leaves_the_training_graph_usable():
    model = nn.Linear(2, 2)
    host = CallableHost(lambda features: model(features).mean(dim=0), 2, 2)
    gates = torch.full((3,), 0.5, requires_grad=True)
    host(FEATURES, gates=gates).logits.square().sum().backward()
    assert model.weight.grad.abs().max() > 0
    assert gates.grad.abs().max() > 0


def test_the_models_scores_are_taken_as_they_are():
    host = CallableHost(
        lambda features: (mean_model(features), features[:, 1]), 2, 2, scores="model"
    )
    assert host(FEATURES).scores.tolist() == pytest.approx([0.0, 3.0, 1.0])
    assert host(FEATURES, gates=torch.tensor([1.0, 0.0, 1.0])).scores.tolist() == pytest.approx(
        [0.0, 0.0, 1.0]
    )


def test_keep_one_asks_a_model_without_gradients_about_each_patch_alone():
    host = CallableHost(lambda features: mean_model(features).numpy(), 2, 2, scores="keep-one")
    output = host(FEATURES)
    assert isinstance(host.model(FEATURES), np.ndarray)
    assert output.scores.tolist() == pytest.approx([0.0, 6.0, 2.0])


def test_coordinates_are_given_where_asked_for():
    host = CallableHost(
        lambda features, coords: features.mean(0) + coords[:, 0].max(), 2, 2, takes_coords=True
    )
    torch.testing.assert_close(host(FEATURES, COORDS).logits, FEATURES.mean(0) + 512)
    kept = host(FEATURES, COORDS, gates=torch.tensor([1.0, 1.0, 0.0]))
    torch.testing.assert_close(kept.logits, FEATURES[:2].mean(0) + 256)


def test_one_logit_is_the_log_odds_of_the_second_class():
    host = CallableHost(lambda features: features.mean().reshape(1), 2, 2)
    probabilities = host(FEATURES).logits.softmax(0)
    torch.testing.assert_close(probabilities[1], torch.sigmoid(FEATURES.mean()))


def test_one_output_stays_one_risk():
    host = CallableHost(lambda features: features.mean(), 2, 1)
    torch.testing.assert_close(host(FEATURES).logits, FEATURES.mean().reshape(1))


def torchmil_models():
    torch.manual_seed(0)
    return {
        "abmil": torchmil.models.ABMIL(in_shape=(8,), att_dim=4),
        "clam_sb": torchmil.models.CLAM_SB(in_shape=(8,), att_dim=4, k_sample=2),
        "dsmil": torchmil.models.DSMIL(in_shape=(8,), att_dim=4),
        "transmil": torchmil.models.TransMIL(in_shape=(8,), att_dim=8, n_heads=2, n_landmarks=4),
        "dtfd": torchmil.models.DTFDMIL(in_shape=(8,), att_dim=4, n_groups=1),
        "camil": torchmil.models.CAMIL(in_shape=(8,), nystrom_att_dim=8, n_heads=2, n_landmarks=4),
    }


@pytest.mark.parametrize("name", ["abmil", "clam_sb", "dsmil", "transmil", "dtfd", "camil"])
@pytest.mark.parametrize("n_outputs", [1, 2])
def test_torchmil_models_keep_their_prediction_and_scores(name, n_outputs):
    model = torchmil_models()[name].eval()
    features = torch.randn(9, 8, generator=torch.Generator().manual_seed(1))
    host = TorchmilHost(
        model, 8, n_outputs, adjacency=lambda features, coords: torch.eye(len(features))
    )
    output = host(features, gates=torch.tensor([1.0] * 8 + [0.0]))
    more = {"adj": torch.eye(8).unsqueeze(0)} if name == "camil" else {}
    more |= {} if name == "transmil" else {"mask": torch.ones(1, 8, dtype=torch.bool)}
    logit, scores = model.predict(features[:8].unsqueeze(0), **more, return_inst_pred=True)
    torch.testing.assert_close(output.logits[-1:], logit.flatten())
    torch.testing.assert_close(output.scores[:8], scores.flatten())
    assert len(list(host.parameters())) == len(list(model.parameters()))


def test_a_torchmil_model_over_graphs_needs_an_adjacency():
    with pytest.raises(UsageError, match="CAMIL takes a graph"):
        TorchmilHost(torchmil_models()["camil"], 8, 2)


def test_a_module_without_predict_is_sent_to_the_callable_host():
    with pytest.raises(UsageError, match="Linear has no 'predict'"):
        TorchmilHost(nn.Linear(2, 2), 2, 2)


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (
            lambda x: x.mean(dim=0).repeat(2),
            {},
            "gave 4 logits for one bag; this host has n_outputs=2",
        ),
        (lambda x: (mean_model(x), x.flatten()), {}, "6 patch scores for 3 patches"),
        (mean_model, {"scores": "model"}, "it returned logits"),
        (lambda x: mean_model(x.detach()), {}, "scores='keep-one'"),
    ],
)
def test_a_model_that_answers_in_another_form_is_refused(model, options, match):
    with pytest.raises(UsageError, match=match):
        CallableHost(model, 2, 2, **options)(FEATURES)
