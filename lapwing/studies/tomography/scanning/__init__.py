"""From an image to a sinogram: geometries, the projector, scans and where images come from."""
