"""Figures of a report: every function takes plain arrays and returns a matplotlib Figure; no pyplot, no global state."""
