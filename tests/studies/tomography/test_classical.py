"""Classical reconstructions: against scikit-image, normal equations and an independent optimiser."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from lapwing.studies.tomography import FanBeam, ParallelBeam, Scan, cgls, differences, fbp, projector, simulate, tv


def phantom(size: int) -> torch.Tensor:
    image = torch.zeros(size, size).double()
    image[size // 4 : -size // 4, size // 3 : -size // 5] = 1
    image[size // 2 : -size // 3, size // 2 : -size // 3] = 0.4
    return image


class Spokes:
    """A geometry of somebody's own."""

    angles, bins = FanBeam.spread(4, 8).angles, FanBeam.spread(4, 8).bins


def rms(values: torch.Tensor) -> float:
    return float(values.square().mean().sqrt())


def test_fbp_is_as_good_as_that_of_scikit_image():
    from skimage.transform import iradon

    rows, columns = np.mgrid[:33, :33] - 16
    truth = np.exp(-(rows**2 + (columns - 3) ** 2) / 25.0)
    scan = simulate(truth, projector(ParallelBeam.spread(60, 33), 33), noise=1e-6)
    ours = fbp(scan, "ramp")
    theirs = iradon(scan.sinogram.numpy().T, np.arange(60) * 3.0, output_size=33, circle=False, filter_name="ramp")
    assert rms(ours - torch.from_numpy(truth)) <= max(0.01, 1.1 * rms(torch.from_numpy(theirs - truth)))


def test_fbp_does_not_depend_on_the_spacing_of_bins():
    truth = torch.from_numpy(np.exp(-((np.mgrid[:20, :20] - 9.5) ** 2).sum(0) / 30))
    fine = projector(ParallelBeam(ParallelBeam.spread(40, 20).angles, 59, 0.5), 20)
    coarse = projector(ParallelBeam.spread(40, 20), 20)
    found = [fbp(simulate(truth, A, noise=1e-6), "ramp") for A in (fine, coarse)]
    assert rms(found[0] - found[1]) <= 0.02
    assert rms(found[0] - truth) <= 0.02


@pytest.mark.parametrize("detector", [0.0, 1.3])
def test_fbp_of_a_fan_is_that_of_parallel_rays(detector):
    """The same smooth image by two geometries, off centre and unlike in both axes, so that no turn or flip would pass."""
    rows, columns = np.mgrid[:33, :33] - 16
    truth = torch.from_numpy(np.exp(-((rows + 4) ** 2 / 20.0 + (columns - 5) ** 2 / 36.0)))
    fan = FanBeam.spread(90, 33, source=1.5, detector=detector)
    found = [
        fbp(simulate(truth, projector(geometry, 33), noise=1e-6), "ramp")
        for geometry in (fan, ParallelBeam.spread(90, 33))
    ]
    assert rms(found[0] - truth) <= 0.01
    assert rms(found[0] - found[1]) <= 0.01
    assert float(found[0].sum()) == pytest.approx(float(truth.sum()), rel=0.02)


def test_cgls_goes_to_the_least_squares_solution_and_stops_at_the_noise():
    A = projector(ParallelBeam.spread(14, 6), 6)
    noisy = simulate(phantom(6), A, noise=0.05)
    unknown = Scan(A, noisy.sinogram)
    exact = torch.linalg.lstsq(A.operator.dense(), noisy.flat[:, None]).solution.reshape(6, 6)
    torch.testing.assert_close(cgls(unknown, steps=60).image, exact, rtol=1e-6, atol=1e-6)
    stopped = cgls(noisy)
    assert stopped.converged
    assert stopped.misfit <= noisy.noise_std
    assert stopped.steps < 30


def test_tv_reaches_the_optimum_of_another_route():
    """The problem with |d| smoothed to √(d² + ε²), by a quasi-Newton method: within ε per difference of the same."""
    import scipy.optimize

    scan, weight, eps = simulate(phantom(7), projector(ParallelBeam.spread(3, 7), 7), noise=0.1), 0.3, 1e-6
    A, D = scan.projector.operator.dense(), differences(7).dense()

    def objective(x):
        at = torch.from_numpy(x).requires_grad_()
        value = 0.5 * (A @ at - scan.flat).square().sum() + weight * ((D @ at).square() + eps**2).sqrt().sum()
        value.backward()
        return float(value.detach()), at.grad.numpy()

    best = scipy.optimize.minimize(
        objective, np.full(49, 0.2), jac=True, method="L-BFGS-B", bounds=[(0, None)] * 49,
        options={"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-10},
    ).fun  # fmt: skip
    found = tv(scan, weight, steps=20_000, rtol=1e-5)
    x = found.image.reshape(-1)
    value = float(0.5 * (A @ x - scan.flat).square().sum() + weight * (D @ x).abs().sum())
    assert found.converged
    assert value <= best * (1 + 1e-4) + weight * eps * len(D)
    assert x.min() >= 0


def test_tv_by_the_noise_level_has_that_misfit_and_beats_the_others():
    scan = simulate(phantom(16), projector(ParallelBeam.spread(7, 16), 16), noise=0.05)
    found = tv(scan)
    assert found.misfit == pytest.approx(scan.noise_std, rel=0.02)  # where the bisection ends
    assert rms(found.image - scan.truth) < min(rms(cgls(scan).image - scan.truth), rms(fbp(scan) - scan.truth))


def test_bad_input_is_explained():
    scan = simulate(phantom(8), projector(FanBeam.spread(4, 8), 8))
    other = replace(scan, projector=replace(scan.projector, geometry=Spokes()))
    with pytest.raises(ValueError, match="is for ParallelBeam and FanBeam, got Spokes: use cgls"):
        fbp(other)
    with pytest.raises(ValueError, match="window is 'box'"):
        fbp(simulate(phantom(8), projector(ParallelBeam.spread(4, 8), 8)), "box")
    with pytest.raises(ValueError, match="weight is -1"):
        tv(scan, -1)
    with pytest.raises(ValueError, match="neither is there"):
        tv(Scan(scan.projector, scan.sinogram))
    with pytest.raises(ValueError, match="steps is 0"):
        cgls(scan, steps=0)
