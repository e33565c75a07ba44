"""Applications of the core: scans and their reconstructions, symmetries of pictures, and data to show them on."""
