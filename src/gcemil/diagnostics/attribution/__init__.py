"""Patch scorers that explain a finished host: `table.py` lists them."""
