"""Data sets, corruptions and networks for honest comparisons, and the tables made from them."""
