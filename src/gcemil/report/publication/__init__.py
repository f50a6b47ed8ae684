"""Figures and tables of a run for a paper."""
