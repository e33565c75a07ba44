"""One recorder of the uses of weights in a pass, and one rule for each kind of layer."""
