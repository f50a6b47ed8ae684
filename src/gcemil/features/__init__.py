"""Patches become vectors and prompts become anchors: encoders, extraction, text encoders, the report on the bridge."""
