"""Simulated cohorts whose evidence is known: dials and profiles in, a cohort folder with truth out."""
