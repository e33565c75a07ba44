"""Which transformations a set of pictures is invariant to: undo them, measure them, generate with them."""

from lapwing.studies.symmetry.group import Affine
from lapwing.studies.symmetry.inference import Training
from lapwing.studies.symmetry.joint import JointModel, JointSettings
from lapwing.studies.symmetry.model import Settings, SymmetryModel
from lapwing.studies.symmetry.warping import disc, warp

__all__ = ["Affine", "JointModel", "JointSettings", "Settings", "SymmetryModel", "Training", "disc", "warp"]
