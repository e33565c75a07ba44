"""X-ray tomography from few angles: reconstructions that know where they may be wrong.

The data flow, top to bottom:

    an image, or a measured sinogram      read_image, simulate, Scan
    + a geometry                          ParallelBeam, FanBeam, projector
    = a scan                              fbp, cgls, tv: the classical answers
    + a network for this one image        deep_image_prior -> Reconstruction
    linearised at its filters             linearise -> Linearised; .model(prior, noise) is a lapwing.LinearModel
    + FilterPrior, TvPredCp               tune: variances, lengthscales and noise by Type-II MAP
    = a posterior over the image          quantify -> ImagePosterior: std, samples, patches, density
"""

from lapwing.tomography.classical import Fitted, cgls, fbp, tv
from lapwing.tomography.deep_image_prior import Reconstruction, Settings, deep_image_prior
from lapwing.tomography.expected_tv import TvPredCp, difference_moments, expected_tv, sweep
from lapwing.tomography.filter_prior import FilterPrior
from lapwing.tomography.linear import Linearised, linearise
from lapwing.tomography.posterior import ImagePosterior, quantify, stabiliser
from lapwing.tomography.scanning.geometry import FanBeam, Geometry, ParallelBeam
from lapwing.tomography.scanning.images import read as read_image
from lapwing.tomography.scanning.projector import Projector, projector
from lapwing.tomography.scanning.scan import Scan, simulate
from lapwing.tomography.total_variation import differences, total_variation
from lapwing.tomography.unet import UNet

__all__ = [
    "FanBeam",
    "FilterPrior",
    "Fitted",
    "Geometry",
    "ImagePosterior",
    "Linearised",
    "ParallelBeam",
    "Projector",
    "Reconstruction",
    "Scan",
    "Settings",
    "TvPredCp",
    "UNet",
    "cgls",
    "deep_image_prior",
    "difference_moments",
    "differences",
    "expected_tv",
    "fbp",
    "linearise",
    "projector",
    "quantify",
    "read_image",
    "simulate",
    "stabiliser",
    "sweep",
    "total_variation",
    "tv",
]
