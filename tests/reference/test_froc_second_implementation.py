"""Both FROC scores against a second implementation, written from the rules with plain loops and flood fill."""

import numpy as np
import pytest

from gcemil.diagnostics.localisation import MappedSlide, SlideTruth, localisation_rows

PAPER = [0.125, 0.25, 0.5, 1, 2, 4, 8]
OFFICIAL = [0.25, 0.5, 1, 2, 4, 8]
RULE = ("map", "none")


def flooded(cells):
    """Connected groups of a set of (x, y), sides and corners."""
    waiting, groups = set(cells), []
    while waiting:
        group, front = set(), [min(waiting)]
        while front:
            x, y = front.pop()
            if (x, y) in waiting:
                waiting.remove((x, y))
                group.add((x, y))
                front += [(x + dx, y + dy) for dx in (-1, 0, 1) for dy in (-1, 0, 1)]
        groups.append(group)
    return groups


def chosen_threshold(slides):
    """The highest score at which the mean Dice of the slides with lesions is best."""
    best, chosen = -1.0, None
    for threshold in sorted(
        {score for scores, _, _ in slides for score in scores.values()}, reverse=True
    ):
        found = []
        for scores, positive, _ in slides:
            marked = {cell for cell, score in scores.items() if score >= threshold}
            if positive:
                found.append(2 * len(marked & positive) / (len(marked) + len(positive)))
        if np.mean(found) > best + 1e-9:
            best, chosen = np.mean(found), threshold
    return chosen


def paper_froc(slides, threshold):
    events = []
    lesions = 0
    for slide, (scores, positive, _) in enumerate(slides):
        groups = flooded(positive)
        lesions += len(groups)
        for candidate in flooded([cell for cell, score in scores.items() if score >= threshold]):
            top = max(scores[cell] for cell in candidate)
            hit = [(slide, number) for number, lesion in enumerate(groups) if lesion & candidate]
            events.append((top, hit))
    values = []
    for rate in PAPER:
        reached = 0.0
        for level in {top for top, _ in events}:
            admitted = [hit for top, hit in events if top >= level]
            if sum(not hit for hit in admitted) / len(slides) <= rate:
                reached = max(
                    reached, len({lesion for hit in admitted for lesion in hit}) / lesions
                )
        values.append(reached)
    return float(np.mean(values))


def official_froc(slides, threshold):
    """The organisers' bookkeeping: one probability per lesion (0 = missed), a list of false positives, a sweep."""
    per_lesion, wrong = [], []
    for scores, positive, isolated in slides:
        groups = flooded(positive)
        own = [0.0] * len(groups)
        for candidate in flooded([cell for cell, score in scores.items() if score >= threshold]):
            # Patches are listed in raster order; the first of the highest is the point.
            point = max(
                sorted(candidate, key=lambda cell: (cell[1], cell[0])),
                key=lambda cell: scores[cell],
            )
            struck = [number for number, lesion in enumerate(groups) if point in lesion]
            if struck:
                own[struck[0]] = max(own[struck[0]], scores[point])
            else:
                wrong.append(scores[point])
        per_lesion += [
            value for value, lesion in zip(own, groups, strict=True) if not lesion & isolated
        ]
    if not per_lesion:
        return None
    levels = sorted({*wrong, *(value for value in per_lesion if value > 0)})
    false = [sum(value >= level for value in wrong) / len(slides) for level in levels] + [0.0]
    found = [sum(value >= level for value in per_lesion) / len(per_lesion) for level in levels] + [
        0.0
    ]
    return float(np.mean(np.interp(OFFICIAL, false[::-1], found[::-1])))


def random_slide(generator, name):
    """Scores with ties on a grid with holes, lesions grown as blobs, some of them isolated tumour cells."""
    width, height = generator.integers(4, 12, size=2)
    cells = [(x, y) for y in range(height) for x in range(width) if generator.random() < 0.85]
    positive = set()
    for _ in range(generator.integers(0, 4)):
        x, y = cells[generator.integers(len(cells))]
        positive |= {
            cell
            for cell in cells
            if abs(cell[0] - x) + abs(cell[1] - y) <= generator.integers(0, 2)
        }
    scores = {
        cell: float(generator.integers(1, 10) + 3 * (cell in positive)) / 20 for cell in cells
    }
    groups = flooded(positive)
    isolated = [bool(generator.random() < 0.3) for _ in groups]
    number = {cell: index + 1 for index, group in enumerate(groups) for cell in group}
    lesion = np.array([number.get(cell, 0) for cell in cells])
    truth = SlideTruth(
        name, np.array(cells), lesion > 0, lesion, np.array(isolated, dtype=bool), True
    )
    judged = MappedSlide(truth, {RULE: np.array([scores[cell] for cell in cells])})
    left_out = {
        cell for group, small in zip(groups, isolated, strict=True) if small for cell in group
    }
    return judged, (scores, positive, left_out)


@pytest.mark.parametrize("seed", range(25))
def test_both_scores_equal_the_second_implementation(seed):
    generator = np.random.default_rng(seed)
    pairs = [random_slide(generator, f"slide {index}") for index in range(12)]
    val, test = pairs[:5], pairs[5:]
    rows, _ = localisation_rows([one for one, _ in val], [one for one, _ in test])
    threshold = chosen_threshold([other for _, other in val])
    assert rows[0].values["map_threshold"] == threshold
    assert rows[0].values["froc"] == pytest.approx(
        paper_froc([other for _, other in test], threshold)
    )
    expected = official_froc([other for _, other in test], threshold)
    assert rows[0].values["froc_official"] == (
        None if expected is None else pytest.approx(expected)
    )
