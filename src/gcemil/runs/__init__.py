"""A run on disk: what was trained, on which bags, and how to load it again. Training writes it, diagnostics read it."""
