"""Folders and tables that other tools write: what they are, and how they become a cohort."""
