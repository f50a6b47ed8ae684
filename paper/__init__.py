"""The tables of the GCE-MIL paper beside the same tables from results of `gcemil benchmark`; see
README.md.
"""
