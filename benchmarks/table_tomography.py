"""The part of benchmarks/README.md that is about X-ray tomography."""

from __future__ import annotations

import statistics

from table_networks import results, table

DROPOUT = ", dropout"  # at the end of the name of a cell


def digits(cells: dict) -> str:
    """Means over the digits of every number of angles and noise."""
    groups: dict[str, list[dict]] = {}
    for name, result in results(cells):
        groups.setdefault(name.rpartition(", digit")[0] or name, []).append(result)
    rows = []
    for name, found in groups.items():

        def mean(key: str, found: list[dict] = found) -> float:
            return sum(result[key] for result in found) / len(found)

        gaps = [result["log_density"] - result["log_density_dropout"] for result in found]
        error = f" ± {statistics.stdev(gaps) / len(gaps) ** 0.5:.2f}" if len(gaps) > 1 else ""
        ahead = sum(result["log_density"] > result["log_density_dropout"] for result in found)
        pooled = (sum(result["z_std"] ** 2 for result in found) / len(found)) ** 0.5
        rows.append([
            name, f"{len(found)}", f"{mean('log_density'):.2f}", f"{mean('log_density_linear'):.2f}",
            f"{mean('log_density_dropout'):.2f}", f"{mean('log_density_unit'):.2f}", f"{statistics.mean(gaps):+.2f}{error}",
            f"{ahead} of {len(found)}", f"{pooled:.2f}", f"{mean('psnr'):.1f} / {mean('psnr_dropout'):.1f} / {mean('psnr_tv'):.1f}",
        ])  # fmt: skip
    return table(
        ["angles, noise", "digits", "log-density", "about the linear mean", "dropout", "unit variance", "over dropout", "ahead of it",
         "errors over error bars", "PSNR: DIP / dropout / TV"], rows,
    )  # fmt: skip


def slices(cells: dict) -> str:
    dropout = {name.removesuffix(DROPOUT): cell["result"] for name, cell in cells.items() if name.endswith(DROPOUT)}
    rows = []
    for name, cell in cells.items():
        if name.endswith(DROPOUT):
            continue
        r, own = cell["result"], dropout.get(name, {})
        rows.append([
            name, f"{r['observations']:,}", f"{r['psnr']:.1f} / {r['psnr_tv']:.1f} / {r['psnr_fbp']:.1f}",
            f"{r['log_density']:.2f} / {r['log_density_unit']:.2f}", f"{r['z_std']:.2f}",
            known(r, "calibrated_psnr", "{:.1f}"), known(r, "calibrated_log_density", "{:.2f}"),
            known(r, "calibrated_z_std", "{:.2f}"), known(own, "log_density", "{:.2f}"), known(own, "psnr", "{:.1f}"),
            f"{r['coverage']:.2f}", f"{r['rank_correlation']:.2f}", f"{sum(r['seconds'].values()) / 60:.1f} min",
            f"{cell['peak_memory_bytes'] / 1e9:.1f} GB",
        ])  # fmt: skip
    return table(
        ["image", "line integrals", "PSNR: DIP / TV / FBP", "log-density / unit variance", "errors over error bars",
         "calibrated: PSNR", "log-density", "errors over error bars", "dropout: log-density", "PSNR",
         "worst tenth found", "rank correlation", "time", "peak memory"], rows,
    )  # fmt: skip


def known(result: dict, name: str, shown: str) -> str:
    """A number, or a dash where it was not measured."""
    return shown.format(result[name]) if name in result else "–"


def angles(cells: dict) -> str:
    rows = [
        [name, f"{r['images']}", f"{r['error_chosen']:.4f}", f"{r['error_equispaced']:.4f}",
         f"{r['error_random']:.4f}", f"{r['gain']:+.4f} ± {r['gain_standard_error']:.4f}", f"{r['ahead']} of {r['images']}",
         f"{r['degrees_to_direction']:.0f}°"]
        for name, r in results(cells)
    ]  # fmt: skip
    return table(
        ["images of", "images", "error, chosen", "equispaced", "random", "gained over equispaced", "ahead",
         "chosen angles from the direction of the bars"], rows,
    )  # fmt: skip


def projectors(cells: dict) -> str:
    rows = [
        [name, f"{r['rays']:,}", f"{r['entries']:,}", f"{r['build_seconds']:.2f} s", f"{1e3 * r['project_seconds']:.2f} ms",
         f"{r['project_ratio']:.2f}", f"{r['back_ratio']:.2f}", f"{r['adjoint_difference']:.0e}"]
        for name, r in results(cells)
    ]  # fmt: skip
    return table(
        ["image, angles", "rays", "entries of the matrix", "to make it", "a projection", "over SciPy's product", "its adjoint, the same",
         "⟨Ax, y⟩ against ⟨x, Aᵀy⟩"], rows,
    )  # fmt: skip


def page(parts: dict) -> str:
    """All of it."""
    return f"""
## Projectors

Exact intersections of rays and pixels as a sparse matrix. SciPy's own product with the same matrix is the unit, medians of
calls in turn.

{projectors(parts["projector"])}

## Scans of digits from few angles

MNIST test digits of 28 × 28 pixels. Log-densities of the true image per pixel, higher is better; errors over error bars
are a root mean square, 1 where the error bars are right. The same stabiliser is added to every variance. Ten digits a row. In the
mean the linearised network is above dropout in all eight settings, most from few angles; from 30 angles with 5 % noise that is a tie
(the difference is below its standard error). It is far above unit variance in all, and errors are as large as their bars say to within a quarter. The bundled row only
shows that the script works: its network is stopped after ten steps.

{digits(parts["ct_digits"])}

## Whole slices, matrix-free

Scans with 5 % noise, never forming a matrix. "Worst tenth found" is the share of the largest tenth of the errors that lies
in the tenth of the pixels with the largest standard deviation, 0.1 by chance. The first row only shows that the script
works: its network is stopped after ten steps. At 128² errors lie where the standard deviation says, and are larger than
it says: the network is one of many that fit, and its own choice is not in the error bars. Times are of a machine with
other work to do; the network of the phantom came from a run that had been stopped, so that its minute is missing.

{slices(parts["ct_slice"])}

## Angles chosen by what is not known yet

Ten angles: four equispaced, six chosen by the information gain under the linearised network's posterior, against ten
equispaced. Root mean square errors of the same reconstruction by total variation, means over images. With bars that run one
way it pays a little, in seven images of ten; with discs, which have no direction, it costs a little.

{angles(parts["ct_angles"])}
"""
