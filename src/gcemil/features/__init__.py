"""Slides to patches and features; prompts, pairs and named examples to anchors."""
