"""The neighbour graph against brute force, the fusion, and gates in both branches."""

import numpy as np
import torch

from gcemil.hosts.camil import Camil, Graph, cosine_distances, nearest_patches, neighbour_graph


def make_host(*, gate_mode="deletion"):
    torch.manual_seed(0)
    return Camil(6, 2, gate_mode, width=16, hidden=8, heads=2, landmarks=8).eval()


def make_features(n, *, seed=1):
    return torch.randn(n, 6, generator=torch.Generator().manual_seed(seed))


def grid(side, *, step=256):
    places = torch.arange(side)
    return step * torch.stack(torch.meshgrid(places, places, indexing="xy"), dim=-1).reshape(-1, 2)


def test_neighbours_are_the_nearest_by_brute_force():
    coords = np.random.default_rng(0).choice(10_000, size=(200, 2), replace=False)
    squared = ((coords[:, None] - coords[None]) ** 2).sum(axis=2)
    nearest = nearest_patches(coords)
    assert nearest.shape == (200, 16)
    np.testing.assert_array_equal(nearest[:, 0], np.arange(200))
    np.testing.assert_array_equal(
        np.take_along_axis(squared, nearest, axis=1), np.sort(squared, axis=1)[:, :16]
    )


def test_equally_distant_neighbours_are_ranked_by_row_then_column():
    nearest = nearest_patches(grid(7).numpy())[24]
    assert nearest[:9].tolist() == [24, 17, 23, 25, 31, 16, 18, 30, 32]


def test_the_graph_does_not_depend_on_the_order_of_rows():
    coords, features = grid(9), make_features(81)
    order = torch.randperm(81, generator=torch.Generator().manual_seed(3))
    plain, shuffled = (
        neighbour_graph(features, coords),
        neighbour_graph(features[order], coords[order]),
    )
    assert torch.equal(plain.neighbours[order], order[shuffled.neighbours])
    torch.testing.assert_close(plain.shares[order], shuffled.shares)


def test_cosine_distances_are_those_of_torch():
    features, others = (
        make_features(50),
        torch.randint(0, 50, (50, 1), generator=torch.Generator().manual_seed(0)),
    )
    others = (others + 7 * torch.arange(5)) % 50
    expected = 1 - torch.cosine_similarity(features.unsqueeze(1), features[others], dim=2)
    torch.testing.assert_close(cosine_distances(features, others), expected, rtol=0, atol=1e-6)


def test_without_coordinates_the_rows_are_a_line():
    features = make_features(30)
    graph = neighbour_graph(features, None)
    assert sorted(graph.neighbours[15].tolist()) == [11, 12, 13, 14, 15, 16, 17, 18]
    line = torch.stack([100 * torch.arange(30), torch.zeros(30, dtype=torch.int64)], dim=1)
    torch.testing.assert_close(make_host()(features).logits, make_host()(features, line).logits)


def test_a_neighbour_fades_with_its_gate():
    host, glob = make_host(), torch.randn(3, 16, generator=torch.Generator().manual_seed(0))
    graph = Graph(torch.tensor([[0, 1], [1, 2], [2, 0]]), torch.full((3, 2), 0.5))
    log_gates = torch.tensor([0.0, -90.0, 0.0])
    faded = host.neighbour_logits(glob, graph, log_gates)
    alone = 0.5 * (host.query(glob)[0] @ host.key(glob)[0]) / 8**0.5
    torch.testing.assert_close(faded[0], alone)
    torch.testing.assert_close(faded[2], host.neighbour_logits(glob, graph, None)[2])


def test_in_paper_mode_the_graph_never_sees_the_gates(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "gcemil.hosts.camil.neighbour_graph",
        lambda raw, coords: seen.append(raw) or neighbour_graph(raw, coords),
    )
    features, gates = make_features(25), torch.zeros(25)
    gates[3] = 1
    output = make_host(gate_mode="paper")(features, grid(5), gates=gates)
    assert torch.equal(seen[0], features)
    assert output.logits.isfinite().all()
