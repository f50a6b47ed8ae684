"""Lengths that must not be mixed: a number in level-0 pixels is not one in micrometres."""

from typing import NewType

LevelZeroPx = NewType("LevelZeroPx", int)
"""A length or position in pixels of the slide's largest level."""

Microns = NewType("Microns", float)
"""A physical length in micrometres."""
