"""Simulated cohorts with known evidence: features and pixels of one world."""
