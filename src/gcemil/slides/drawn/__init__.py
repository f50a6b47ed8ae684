"""Slides drawn by rule, with pixel truth: H&E-like tissue whose texture, not whose colour, says what it is."""
