"""MHIM: masks, the slow teacher, the consistency loss and the two stages."""

import math

import pytest
import torch

from gcemil.hosts import mhim
from gcemil.hosts.host import Stage
from gcemil.hosts.mhim import Mhim, consistency, masked_patches

TEACHER, STUDENT = Stage("teacher", prepares=True, keeps_best=True), Stage("student")
LABEL = torch.tensor(1)


def small_host(n_outputs: int = 3, **options: object) -> Mhim:
    torch.manual_seed(0)
    return Mhim(10, n_outputs, **{"width": 6, "hidden": 5, "dropout": 0.0, **options})


def student_host(**options: object) -> Mhim:
    host = small_host(**options)
    host.begin_stage(STUDENT, unasked, 1)
    return host


def unasked() -> torch.Tensor:
    raise RuntimeError("mhim needs no bag features")


def test_teacher_stage_is_the_plain_base_without_masks() -> None:
    host = small_host()
    features = torch.randn(30, 10)
    training = host.train()(features, target=LABEL)
    torch.testing.assert_close(training.logits, host.eval()(features).logits)
    assert training.losses == {}


def test_student_stage_makes_the_trained_base_the_teacher() -> None:
    host = small_host()
    trained = {name: value.clone() for name, value in host.student.state_dict().items()}
    host.begin_stage(STUDENT, unasked, 1)
    for name, value in host.teacher.state_dict().items():
        assert torch.equal(value, trained[name])
    assert torch.equal(host.student.project[0].weight, trained["project.0.weight"])
    assert not torch.equal(host.student.attention[0].weight, trained["attention.0.weight"])
    assert not torch.equal(host.student.head.weight, trained["head.weight"])


def test_low_and_high_masks_take_the_ends_of_the_ranking() -> None:
    hardness = torch.tensor([3.0, 9.0, 1.0, 7.0, 5.0])

    def masked(low: float, high: float) -> list[int]:
        return masked_patches(hardness, 0.0, low, high, 1.0).nonzero().flatten().tolist()

    assert masked(0.4, 0.0) == [0, 2]
    assert masked(0.0, 0.4) == [1, 3]
    assert masked(0.2, 0.2) == [1, 2]


def test_high_mask_draws_its_share_from_a_larger_top_set() -> None:
    torch.manual_seed(0)
    masks = torch.stack(
        [masked_patches(torch.arange(100.0), 0.0, 0.0, 0.1, 0.5) for _ in range(50)]
    )
    assert (masks.sum(dim=1) == 10).all()
    assert not masks[:, :80].any()
    assert masks[:, 80:].any(dim=0).all()


@pytest.mark.parametrize("n_patches", [1, 2, 3])
def test_a_bag_masked_away_keeps_its_hardest_patch(n_patches: int) -> None:
    hardness = torch.arange(float(n_patches))
    masked = masked_patches(hardness, 1.0, 0.0, 0.5, 0.5)
    assert (~masked).nonzero().flatten().tolist() == [n_patches - 1]


def test_student_sees_the_kept_patches_only(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = torch.tensor([True, False, True, True, False])
    monkeypatch.setattr(mhim, "masked_patches", lambda hardness, *ratios: ~kept)
    host = student_host()
    features = torch.randn(5, 10)
    masked = host.train()(features, target=LABEL)
    torch.testing.assert_close(masked.logits, host.eval()(features[kept]).logits)


@pytest.mark.parametrize("gate_mode", ["paper", "deletion"])
def test_masks_rank_by_the_ungated_teacher(monkeypatch: pytest.MonkeyPatch, gate_mode: str) -> None:
    ranked_by: list[torch.Tensor] = []

    def recorded(hardness: torch.Tensor, *ratios: float) -> torch.Tensor:
        ranked_by.append(hardness)
        return torch.zeros_like(hardness, dtype=torch.bool)

    monkeypatch.setattr(mhim, "masked_patches", recorded)
    host = student_host(gate_mode=gate_mode).train()
    features = torch.randn(6, 10)
    host(features, gates=torch.rand(6), target=LABEL)
    torch.testing.assert_close(ranked_by[0], host.teacher(features)[1])


@pytest.mark.parametrize("gate_mode", ["paper", "deletion"])
def test_consistency_compares_gated_teacher_with_gated_student(gate_mode: str) -> None:
    host = student_host(
        gate_mode=gate_mode, random_ratio=0.0, high_ratio=0.0, consistency_weight=1.0
    ).train()
    features, gates = torch.randn(6, 10), torch.rand(6)
    output = host(features, gates=gates, target=LABEL)
    seen = features * gates.unsqueeze(1) if gate_mode == "paper" else features
    tokens, attention_logits = host.teacher(seen)
    teacher_feature = torch.softmax(attention_logits + gates.log(), dim=0) @ tokens
    torch.testing.assert_close(
        output.losses["consistency"], consistency(teacher_feature, output.bag_feature)
    )


def test_consistency_trains_the_student_and_never_the_teacher() -> None:
    host = student_host().train()
    gates = torch.rand(12, requires_grad=True)
    host(torch.randn(12, 10), gates=gates, target=LABEL).losses["consistency"].backward()
    assert host.student.project[0].weight.grad is not None
    assert all(p.grad is None for p in host.teacher.parameters())
    assert gates.grad is not None
    assert gates.grad.any()


def test_teacher_follows_the_student_once_per_step() -> None:
    host = student_host(momentum=0.75)
    assert host.momentum == 0.75
    with torch.no_grad():
        host.teacher.head.bias.fill_(1.0)
        host.student.head.bias.fill_(5.0)
    host.after_step()
    assert host.teacher.head.bias.tolist() == pytest.approx([2.0, 2.0, 2.0])
    host.after_step()
    assert host.teacher.head.bias.tolist() == pytest.approx([2.75, 2.75, 2.75])


@pytest.mark.parametrize("n_steps", [12, 450, 34_580])
def test_a_stage_of_any_length_replaces_as_much_of_the_teacher_as_the_published_one(
    n_steps: int,
) -> None:
    host = small_host()
    host.begin_stage(STUDENT, unasked, n_steps)
    assert 1 - host.momentum**n_steps == pytest.approx(1 - 0.9999**34_580, rel=1e-6)
    assert 1 - host.momentum**n_steps == pytest.approx(0.97, abs=0.005)


def test_the_high_ratio_falls_to_zero_by_a_cosine() -> None:
    host = small_host(high_ratio=0.01)
    host.begin_stage(STUDENT, unasked, 4)
    ratios = [host.decayed_high_ratio]
    for _ in range(4):
        host.after_step()
        ratios.append(host.decayed_high_ratio)
    quarter = 0.005 * (1 + math.cos(math.pi / 4))
    assert ratios == pytest.approx([0.01, quarter, 0.005, 0.01 - quarter, 0.0])


def test_progress_survives_saving_and_loading_and_begins_anew_with_a_stage() -> None:
    host, resumed = small_host(), small_host()
    host.begin_stage(STUDENT, unasked, 8)
    host.after_step()
    host.after_step()
    resumed.load_state_dict(host.state_dict())
    assert resumed.decayed_high_ratio == host.decayed_high_ratio < host.high_ratio
    assert resumed.momentum == host.momentum
    resumed.begin_stage(STUDENT, unasked, 8)
    assert resumed.decayed_high_ratio == host.high_ratio
