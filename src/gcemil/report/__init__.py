"""Records made visible: GeoJSON, overlays, certificates. Everything here reads plain arrays and needs no torch."""
