"""Patches as arrays: bags, the HDF5 store, cohorts, folds, annotations, other tools' layouts."""
