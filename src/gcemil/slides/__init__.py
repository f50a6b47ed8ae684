"""From a slide file to patches as arrays: reader, tissue, grid. No torch, no HDF5."""
