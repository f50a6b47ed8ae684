"""IBMIL: the confounder dictionary and its two stages."""

import torch

from gcemil.hosts.host import Stage
from gcemil.hosts.ibmil import Ibmil, confounder_dictionary

AGGREGATOR, DECONFOUNDED = Stage("aggregator", prepares=True), Stage("deconfounded")


def small_host(n_outputs: int = 3, **options: object) -> Ibmil:
    torch.manual_seed(0)
    return Ibmil(
        10, n_outputs, **{"width": 6, "hidden": 5, "key_width": 4, "n_confounders": 2, **options}
    )


def unasked() -> torch.Tensor:
    raise RuntimeError("this stage needs no bag features")


def test_dictionary_rows_are_means_of_bags_that_share_a_direction() -> None:
    bags = torch.tensor([[2.0, 0.0], [0.0, 1.0], [4.0, 0.0], [0.0, 3.0]])
    rows = confounder_dictionary(bags, 2)
    torch.testing.assert_close(rows[rows[:, 0].argsort()], torch.tensor([[0.0, 2.0], [3.0, 0.0]]))


def rounded(rows: torch.Tensor) -> set[tuple[float, ...]]:
    return {tuple(round(value, 5) for value in row) for row in rows.tolist()}


def test_dictionary_of_parallel_and_dead_bags_is_finite() -> None:
    bags = torch.tensor([[1.0, 1.0], [3.0, 3.0], [0.0, 0.0], [0.0, 0.0]])
    rows = confounder_dictionary(bags, 4)
    assert rounded(rows) == {(2.0, 2.0), (0.0, 0.0)}


def test_deconfounded_stage_asks_once_fills_the_dictionary_and_starts_afresh() -> None:
    host = small_host()
    before = {name: p.clone() for name, p in host.named_parameters()}
    asked: list[torch.Tensor] = []

    def bag_features() -> torch.Tensor:
        # The dictionary belongs to the trained aggregator, so its weights are still there when asked.
        assert torch.equal(host.head.weight, before["head.weight"])
        asked.append(torch.rand(7, 6, requires_grad=True))
        return asked[-1]

    host.begin_stage(DECONFOUNDED, bag_features, 1)
    assert len(asked) == 1
    torch.testing.assert_close(host.confounders, confounder_dictionary(asked[0], 2))
    for name, parameter in host.named_parameters():
        # The dictionary lies in the projection's space, so the projection alone is kept.
        assert torch.equal(parameter, before[name]) == name.startswith("project."), name


def test_aggregator_stage_empties_the_dictionary_and_lets_the_projection_learn_again() -> None:
    host = small_host()
    host.begin_stage(DECONFOUNDED, lambda: torch.rand(7, 6), 1)
    assert not host.project[0].weight.requires_grad
    host.begin_stage(AGGREGATOR, unasked, 1)
    assert not host.confounders.any()
    assert host.project[0].weight.requires_grad


def test_the_space_of_the_dictionary_survives_the_second_stage() -> None:
    torch.manual_seed(1)
    host = Ibmil(24, 2, width=32, hidden=8, dropout=0.0)
    kinds = torch.nn.functional.normalize(torch.randn(8, 24), dim=1)
    bags = [4 * kinds[i % 8] + 0.3 * torch.randn(20, 24) for i in range(48)]

    @torch.no_grad()
    def features() -> torch.Tensor:
        return torch.stack([host(bag).bag_feature for bag in bags])

    def nearest_rows() -> list[int]:
        return torch.cdist(features(), host.confounders).argmin(dim=1).tolist()

    host.begin_stage(DECONFOUNDED, features, 30)
    rows = nearest_rows()
    # Eight kinds of bags, a row for each: every bag is nearest to the row of its own kind.
    assert len(set(rows[:8])) == 8
    assert rows == rows[:8] * 6
    learned = [parameter for parameter in host.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=2e-3)
    for step in range(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            host(bags[step]).logits, torch.tensor(step % 2)
        ).backward()
        optimizer.step()
    # The attention is new and has been trained; the space is the one the dictionary was made in.
    assert nearest_rows() == rows


def test_a_resumed_second_stage_holds_its_projection_too() -> None:
    host, resumed = small_host(), small_host()
    host.begin_stage(DECONFOUNDED, lambda: torch.rand(7, 6), 1)
    resumed.load_state_dict(host.state_dict())
    trained = [name for name, parameter in resumed.named_parameters() if parameter.requires_grad]
    assert trained == [
        name for name, _ in resumed.named_parameters() if not name.startswith("project.")
    ]
