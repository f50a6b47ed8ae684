"""A run on disk: what was trained, on which bags, and how to load it again."""
