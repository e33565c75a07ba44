"""Which transformations a set of pictures is invariant to: undo them, measure them, generate with them."""

from lapwing.symmetry.group import Affine
from lapwing.symmetry.inference import Training
from lapwing.symmetry.joint import JointModel, JointSettings
from lapwing.symmetry.model import Settings, SymmetryModel
from lapwing.symmetry.warping import disc, warp

__all__ = ["Affine", "JointModel", "JointSettings", "Settings", "SymmetryModel", "Training", "disc", "warp"]
