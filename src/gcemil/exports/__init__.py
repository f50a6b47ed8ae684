"""The evidence of one slide as files: HDF5, JSON, QuPath GeoJSON, pictures and a certificate."""
