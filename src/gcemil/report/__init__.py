"""A run, a pair of runs or a grid as one self-contained HTML page with figures. No torch."""
