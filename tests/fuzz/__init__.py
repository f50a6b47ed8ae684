"""Damaged files at every reader: `python -m fuzz` inside tests/, or `make fuzz`. See CONTRIBUTING.md."""
