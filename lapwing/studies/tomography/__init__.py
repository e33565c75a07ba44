"""X-ray tomography from few angles: reconstructions that know where they may be wrong.

The data flow, top to bottom:

    an image, or a measured sinogram      read_image, simulate, Scan
    + a geometry                          ParallelBeam, FanBeam, projector
    = a scan                              fbp, cgls, tv: the classical answers
    + a network for this one image        deep_image_prior -> Reconstruction
    linearised at its filters             linearise -> Linearised; .model(prior, noise) is a lapwing.LinearModel
    what the priors believe               tv_samples, predcp_samples, filter_samples
    + FilterPrior, TvPredCp               tune: variances, lengthscales and noise by Type-II MAP
    = a posterior over the image          quantify -> ImagePosterior: std, samples, patches, density
    + rays that were held out             calibrate -> Calibration: which mean, and how much wider its error bars
    and where to look next                next_angles

`study` does all of it; `lapwing.studies.tomography.page.write` makes its page.
"""

from lapwing.studies.tomography.angles import next_angles
from lapwing.studies.tomography.baselines import dropout_image_prior
from lapwing.studies.tomography.calibration import Calibration, calibrate
from lapwing.studies.tomography.classical import Fitted, cgls, fbp, tv
from lapwing.studies.tomography.deep_image_prior import Reconstruction, Settings, deep_image_prior
from lapwing.studies.tomography.expected_tv import TvPredCp, difference_moments, expected_tv, sweep
from lapwing.studies.tomography.filter_prior import FilterPrior
from lapwing.studies.tomography.linear import Linearised, linearise
from lapwing.studies.tomography.posterior import ImagePosterior, quantify, stabiliser
from lapwing.studies.tomography.prior_samples import filter_samples, predcp_samples, tv_samples
from lapwing.studies.tomography.scanning.geometry import FanBeam, Geometry, ParallelBeam
from lapwing.studies.tomography.scanning.images import read as read_image
from lapwing.studies.tomography.scanning.projector import Projector, projector
from lapwing.studies.tomography.scanning.scan import Scan, simulate
from lapwing.studies.tomography.studies import Plan, Study, study, tune
from lapwing.studies.tomography.total_variation import differences, total_variation
from lapwing.studies.tomography.type_ii.matrix_free import MatrixFree
from lapwing.studies.tomography.type_ii.result import TypeII
from lapwing.studies.tomography.unet import UNet

__all__ = [
    "Calibration",
    "FanBeam",
    "FilterPrior",
    "Fitted",
    "Geometry",
    "ImagePosterior",
    "Linearised",
    "MatrixFree",
    "ParallelBeam",
    "Plan",
    "Projector",
    "Reconstruction",
    "Scan",
    "Settings",
    "Study",
    "TvPredCp",
    "TypeII",
    "UNet",
    "calibrate",
    "cgls",
    "deep_image_prior",
    "difference_moments",
    "differences",
    "dropout_image_prior",
    "expected_tv",
    "fbp",
    "filter_samples",
    "linearise",
    "next_angles",
    "predcp_samples",
    "projector",
    "quantify",
    "read_image",
    "simulate",
    "stabiliser",
    "study",
    "sweep",
    "total_variation",
    "tune",
    "tv",
    "tv_samples",
]
