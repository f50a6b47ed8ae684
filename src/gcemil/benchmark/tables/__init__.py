"""The paper's tables: one small module per family, listed in table.py."""
