"""Figures of a report: functions from plain arrays to a matplotlib Figure; no pyplot, no global state."""
