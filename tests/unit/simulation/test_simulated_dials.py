"""Dials are closed, bounded and explained."""

import pytest

from gcemil.errors import ConfigError
from gcemil.simulation.profile import Dials, resolve_dials


def test_caller_overrides_profile_and_profile_overrides_default():
    dials = resolve_dials({"label_noise": 0.1, "sites": 2}, {"label_noise": 0.2})
    assert (dials.label_noise, dials.sites, dials.pairs) == (0.2, 2, 2000)


def test_unknown_dial_is_refused_by_name():
    with pytest.raises(ConfigError, match="'evidence_strenght'"):
        resolve_dials({}, {"evidence_strenght": 3})


def test_dial_out_of_bounds_is_refused_with_its_value():
    with pytest.raises(ConfigError, match=r"label_noise must be at most 0.8 \(got 0.9\)"):
        resolve_dials({}, {"label_noise": 0.9})


def test_reversed_range_is_refused():
    with pytest.raises(ConfigError, match="evidence_min 0.1 exceeds evidence_max 0.05"):
        resolve_dials({}, {"evidence_min": 0.1, "evidence_max": 0.05})


@pytest.mark.parametrize("name", sorted(Dials.model_fields))
def test_every_dial_is_explained_and_bounded(name):
    field = Dials.model_fields[name]
    assert field.description
    assert field.description.endswith(".")
    bounds = {type(bound).__name__ for bound in field.metadata}
    assert bounds & {"Ge", "Gt"}
    assert bounds & {"Le", "Lt"}
