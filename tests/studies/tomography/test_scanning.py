"""Projector, scans and images against routes of their own: fine sampling, scikit-image, closed forms."""

import math

import numpy as np
import pytest
import torch

from lapwing.studies.tomography import FanBeam, ParallelBeam, Scan, projector, read_image, simulate
from tests.properties import check_operator

SKEW = torch.tensor([0.1, 0.9, math.pi / 2, 2.3]).double()  # one along the grid


def smooth(size: int) -> np.ndarray:
    rows, columns = np.mgrid[:size, :size] - (size - 1) / 2
    one = np.exp(-((rows + 3) ** 2 / 18 + (columns - 5) ** 2 / 30))
    return one + 0.5 * np.exp(-((rows - 6) ** 2 / 12 + (columns + 2) ** 2 / 8))


def sampled_lengths(point, direction, size, steps=400_000):
    """Intersection lengths by counting fine steps along a ray: another route, good to the length of a step."""
    reach = 2.0 * size + abs(point).max()
    t = np.linspace(-reach, reach, steps)
    x, y = point[0] + t * direction[0], point[1] + t * direction[1]
    inside = (abs(x) < size / 2) & (abs(y) < size / 2)
    column, row = np.floor(x[inside] + size / 2).astype(int), np.floor(size / 2 - y[inside]).astype(int)
    lengths = np.bincount(row * size + column, minlength=size * size) * (t[1] - t[0])
    return lengths, t[1] - t[0]


@pytest.mark.parametrize("geometry", [ParallelBeam(SKEW[:2], 5, 1.3), FanBeam(SKEW[:2], 5, 2.1, 11.0, 6.0)])
def test_entries_are_lengths_of_rays_in_pixels(geometry):
    size, points, directions = 6, *(part.numpy() for part in geometry.rays())
    matrix = projector(geometry, size).operator.dense().numpy()
    for ray in range(len(points)):
        expected, step = sampled_lengths(points[ray], directions[ray], size)
        assert abs(matrix[ray] - expected).max() <= 2 * step  # a pixel gains or loses at most a step at either end


def test_adjoint_is_exact(generator):
    for geometry in (ParallelBeam(SKEW, 9), FanBeam.spread(5, 6)):
        A = projector(geometry, 6)
        check_operator(A.operator, A.operator.dense(), generator)
        x, y = torch.randn(6, 6, generator=generator), torch.randn(A.shape, generator=generator)
        forth, back = (A.project(x) * y).sum(), (x * A.back_project(y)).sum()
        assert abs(forth - back) <= 1e-10 * abs(forth)


def test_a_ray_along_a_grid_line_counts_half_on_either_side():
    A = projector(ParallelBeam([0.0, math.pi / 2], 3), 4)
    image = torch.arange(16.0).reshape(4, 4)
    columns, rows = image.sum(0), image.sum(1)
    torch.testing.assert_close(A.project(image)[0], (columns[:3] + columns[1:]).double() / 2)
    torch.testing.assert_close(A.project(image)[1], (rows.flip(0)[:3] + rows.flip(0)[1:]).double() / 2)


def test_chords_of_a_square_are_right_for_any_fan():
    fan = FanBeam.spread(4, 8)
    sums = projector(fan, 8).project(torch.ones(8, 8))
    points, directions = fan.rays()
    near, far = (-4 - points) / directions, (4 - points) / directions
    enter, leave = torch.minimum(near, far).amax(1), torch.maximum(near, far).amin(1)
    torch.testing.assert_close(sums.reshape(-1), (leave - enter).clamp_min(0), rtol=0, atol=1e-9)
    assert sums[:, 0].max() == 0
    assert sums[:, len(sums[0]) // 2].min() > 7.9


def test_agrees_with_scikit_image():
    from skimage.transform import radon

    angles = np.array([0.0, 20.0, 45.0, 77.0, 90.0, 133.0])
    ours = projector(ParallelBeam(np.deg2rad(angles), 47), 33).project(smooth(33)).numpy()
    theirs = radon(smooth(33), angles, circle=False).T
    assert abs(ours - theirs).max() <= 0.01 * ours.max()  # theirs turns the image by interpolation


def test_products_that_record_gradients_are_those_of_the_matrix(generator, monkeypatch):
    A = projector(ParallelBeam(SKEW, 9), 6)
    x = torch.randn(36, generator=generator, requires_grad=True)
    y = torch.randn(36, generator=generator)
    for limit in (2**22, 0):  # stored in full, and sparse
        monkeypatch.setattr("lapwing.studies.tomography.scanning.projector.DENSE", limit)
        product = projector(A.geometry, 6).differentiable(x)
        torch.testing.assert_close(product.double(), A.operator @ x.detach().double(), rtol=1e-5, atol=1e-5)
        (gradient,) = torch.autograd.grad(product @ y, x)
        torch.testing.assert_close(gradient.double(), A.operator.T @ y.double(), rtol=1e-5, atol=1e-5)


def test_some_angles_alone_are_rows_of_the_whole():
    A = projector(ParallelBeam(SKEW, 9), 6)
    torch.testing.assert_close(A.at([2, 0]).dense(), torch.cat([A.operator.dense()[18:27], A.operator.dense()[:9]]))


def test_noise_has_the_size_that_was_asked_for():
    A = projector(ParallelBeam.spread(50, 24), 24)
    scan = simulate(smooth(24), A, noise=0.1, seed=3)
    clean = A.project(smooth(24))
    assert scan.noise_std == pytest.approx(0.1 * clean.abs().mean())
    assert ((scan.sinogram - clean) / scan.noise_std).std() == pytest.approx(1, abs=4 / (2 * clean.numel()) ** 0.5)
    assert torch.equal(scan.sinogram, simulate(smooth(24), A, noise=0.1, seed=3).sinogram)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ParallelBeam([], 5), "at least one angle"),
        (lambda: ParallelBeam.spread(0, 8), "needs at least one"),
        (lambda: ParallelBeam([float("nan")], 5), "NaN or infinite"),
        (lambda: ParallelBeam([0.0], 0), "at least one bin"),
        (lambda: FanBeam([0.0], 5, 1.0, -3.0, 2.0), "positive distance of the source"),
        (lambda: FanBeam.spread(4, 8, source=0.5), "inside the image"),
        (lambda: projector(FanBeam([0.5], 5, 1.0, 3.0, 2.0), 6), "source would be inside the image.*3 pixels.*4.243"),
        (lambda: projector(ParallelBeam([0.0], 5), 0), "size is 0"),
        (lambda: _A().project(torch.ones(6, 5)), "not square"),
        (lambda: _A().project(torch.ones(5, 5)), "does not fit a projector for 6 × 6"),
        (lambda: _A().project(torch.full((6, 6), float("nan"))), "36 pixels that are NaN"),
        (lambda: _A().back_project(torch.ones(9, 4)), "transpose it"),
        (lambda: Scan(_A(), torch.full((4, 9), torch.inf)), "36 values that are NaN or infinite"),
        (lambda: Scan(_A(), torch.ones(4, 9), noise_std=0.0), "expected a positive number"),
        (lambda: simulate(torch.ones(6, 6), _A(), noise=0.0), "noise is 0.0, expected a positive share"),
        (lambda: simulate(torch.zeros(6, 6), _A()), "zero everywhere"),
        (lambda: read_image("somewhere/slice.tiff"), "expected 'shepp-logan' or a file"),
        (lambda: read_image("nowhere.npy"), "there is no file"),
        (lambda: read_image("shepp-logan", 4000), "expected 2 to 400"),
    ],
)
def test_bad_input_is_explained(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _A():
    return projector(ParallelBeam(SKEW, 9), 6)


def test_images_are_read_from_files(tmp_path):
    from skimage.io import imsave

    values = np.arange(25.0).reshape(5, 5)
    np.save(tmp_path / "plain.npy", values)
    torch.testing.assert_close(read_image(tmp_path / "plain.npy"), torch.from_numpy(values / 24))
    np.save(tmp_path / "hu.npy", np.array([[-1000.0, 0.0], [1000.0, -2000.0]]))
    torch.testing.assert_close(read_image(tmp_path / "hu.npy"), torch.tensor([[0, 0.5], [1, 0]]).double())
    imsave(tmp_path / "grey.png", (10 * values).astype(np.uint8), check_contrast=False)
    torch.testing.assert_close(read_image(tmp_path / "grey.png"), torch.from_numpy(values / 24))
    assert read_image("shepp-logan", 20).shape == (20, 20)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones((3, 4)), "not square"),
        (np.array([[0.0, -5.0], [1.0, 2.0]]), "values down to -5"),
        (np.zeros((3, 3)), "zero everywhere"),
        (np.full((2, 2), np.nan), "NaN"),
        (np.array([["a"]]), "expected numbers"),
    ],
)
def test_bad_arrays_are_explained(tmp_path, values, message):
    np.save(tmp_path / "bad.npy", values)
    with pytest.raises(ValueError, match=message):
        read_image(tmp_path / "bad.npy")


def dicom(path, *, pixels=True, syntax="1.2.840.10008.1.2.1"):
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import UID

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = UID("1.2.840.10008.5.1.4.1.1.2"), UID("1.2.3")
    meta.TransferSyntaxUID = UID(syntax)
    data = Dataset()
    data.file_meta, data.Modality = meta, "CT"
    data.SOPClassUID, data.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    data.Rows = data.Columns = 4
    data.BitsAllocated = data.BitsStored = 16
    data.HighBit, data.PixelRepresentation, data.SamplesPerPixel = 15, 0, 1
    data.PhotometricInterpretation, data.RescaleIntercept, data.RescaleSlope = "MONOCHROME2", -1024, 2
    if pixels:
        raw = np.arange(16, dtype="<u2") * 100
        data.PixelData = raw.tobytes() if syntax.endswith(".1.2.1") else b"\xfe\xff\x00\xe0\x04\x00\x00\x00abcd"
        data["PixelData"].VR = "OW" if syntax.endswith(".1.2.1") else "OB"
        data["PixelData"].is_undefined_length = not syntax.endswith(".1.2.1")
    data.save_as(path, enforce_file_format=True)
    return path


def test_dicom_slices_are_hounsfield_units(tmp_path):
    found = read_image(dicom(tmp_path / "slice.dcm"))
    hu = np.arange(16).reshape(4, 4) * 200.0 - 1024
    expected = np.maximum(hu + 1000, 0)
    torch.testing.assert_close(found, torch.from_numpy(expected / expected.max()))


def test_dicom_files_that_cannot_be_used_are_explained(tmp_path):
    with pytest.raises(ValueError, match="has no pixel data"):
        read_image(dicom(tmp_path / "report.dcm", pixels=False))
    with pytest.raises(ValueError, match="encoded as 'JPEG 2000 .*save the slice as .npy"):
        read_image(dicom(tmp_path / "packed.dcm", syntax="1.2.840.10008.1.2.4.90"))
    (tmp_path / "no.dcm").write_bytes(b"no dicom at all")
    with pytest.raises(ValueError, match="is not a DICOM file"):
        read_image(tmp_path / "no.dcm")
