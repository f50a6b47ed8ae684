"""Sections of a report: each reads the run and returns its part of the page."""
