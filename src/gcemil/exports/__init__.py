"""The evidence of one slide as files: HDF5, JSON, QuPath GeoJSON, overlay, and its keep/remove certificate."""
