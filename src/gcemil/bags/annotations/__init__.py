"""Annotations of other tools (ASAP polygons, mask images) as truth per patch."""
