"""Patches as arrays: bags, the HDF5 store, cohort tables, folds, sampling, and simulated cohorts."""
