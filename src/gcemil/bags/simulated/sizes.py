"""The size ladder: every figure of the project names its rung."""

from __future__ import annotations

from dataclasses import dataclass

from gcemil.bags.simulated.profile import Profile
from gcemil.errors import UsageError


@dataclass(frozen=True)
class Size:
    """One rung; None means that the profile decides."""

    slides: int | None
    patches: tuple[int, int] | None
    feature_dim: int
    anchor_dim: int


SIZES: dict[str, Size] = {
    "tiny": Size(24, (120, 300), 48, 32),
    "default": Size(150, None, 128, 96),
    "wide": Size(150, None, 1024, 768),
    "full": Size(None, None, 1024, 768),
}


def size_named(name: str) -> Size:
    if name not in SIZES:
        raise UsageError(f"Unknown size '{name}'. Choose one of: {', '.join(SIZES)}.")
    return SIZES[name]


def patch_bounds(profile: Profile, size: str) -> tuple[int, int]:
    """Fewest and most patches of a slide of this profile on this rung."""
    own = profile.patches if size == "full" else profile.default_patches
    return size_named(size).patches or own
