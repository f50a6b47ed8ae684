"""A student at low magnification that spares most patches of a slide the encoder."""
