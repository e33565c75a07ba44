"""The part of benchmarks/README.md about several processes, long runs, trust in error bars, and hostile files."""

import math
import statistics


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def ranks(cells: dict) -> str:
    rows = []
    for cell in cells.values():
        r, given = cell["result"], cell["arguments"]
        if given.get("by") == "blocks":
            continue
        rows.append([
            f"{given['ranks']}{', by draws' if given.get('by') == 'draws' else ''}", f"{given['n']:,}", f"{r['passes']:.0f}", f"{r['work_of_one']:.2g} s",
            f"{r['work_of_busiest']:.2g} s", f"{r['work_ratio']:.2f}", f"{r['predicted_ratio']:.2f}",
            f"{r['memory_of_a_rank'] / 1e6:.0f} / {r['memory_of_one'] / 1e6:.0f} MB", f"{r['draws_difference']:.0e}",
            f"{r['predicting_ratio']:.2f}",
        ])  # fmt: skip
    columns = ["ranks", "pictures", "passes", "work of one process", "of the busiest rank", "ratio", "predicted",
               "memory of a rank / of one", "draws differ by", "ratio of predicting"]  # fmt: skip
    return table(columns, rows)


def blocks(cells: dict) -> str:
    r = next(cell["result"] for cell in cells.values() if cell["arguments"].get("by") == "blocks")
    return (
        f"{r['weights'] / 1e6:.1f} million weights, two ranks: {r['seconds_in_blocks']:.2f} s where blocks of columns are "
        f"summed while the next is worked out, {r['seconds_at_once']:.2f} s where all are summed at the end "
        f"({r['ratio']:.2f} of it). Both ranks and their sending share two cores here, so there is no idle one to win."
    )


def fuzz(cells: dict) -> str:
    rows = []
    for name, cell in cells.items():
        r = cell["result"]
        rows.append([name, f"{r['cases']:,}", f"{r['refused']:,}", f"{r['read']:,}", str(r["wrong"] + r["executed"])])
    total = [sum(cell["result"][key] for cell in cells.values()) for key in ("cases", "refused", "read")]
    wrong = sum(cell["result"]["wrong"] + cell["result"]["executed"] for cell in cells.values())
    rows.append(["**all**", *(f"**{count:,}**" for count in total), f"**{wrong}**"])
    return table(["files", "mutated", "refused with a message", "read, and sound", "anything else"], rows)


def kills(cells: dict) -> str:
    rows = [
        [
            name, str(r["kills"]), str(r["fits"]), str(r["most_kills_of_one_fit"]), str(r["damaged_files"]),
            str(r["fits_with_other_bits"]),
        ]
        for name, r in ((name, cell["result"]) for name, cell in cells.items())
    ]  # fmt: skip
    total = sum(cell["result"]["kills"] for cell in cells.values())
    wrong = (sum(cell["result"][key] for cell in cells.values()) for key in ("damaged_files", "fits_with_other_bits"))
    fits = sum(cell["result"]["fits"] for cell in cells.values())
    rows.append(["**all**", f"**{total}**", f"**{fits}**", "", *(f"**{count}**" for count in wrong)])
    return table(["fit", "kills", "fits", "most of one fit", "files damaged", "draws that differ in any bit"], rows)


def calibration(cells: dict) -> str:
    rows = []
    for name, cell in cells.items():
        r, levels = cell["result"], (50, 80, 95)
        errors = [math.sqrt(level * (100 - level) / r["repeats"]) for level in levels]
        shown = [
            f"{100 * r[f'coverage_{level}']:.1f} ± {error:.1f} %" for level, error in zip(levels, errors, strict=True)
        ]
        rows.append([name, str(r["repeats"]), f"{r['rank_p_value']:.2f}", *shown])
    return table(["problem", "data sets", "p-value of uniform ranks", "50 %", "80 %", "95 %"], rows)


def large(cells: dict) -> str:
    rows = []
    for cell in cells.values():
        r, given = cell["result"], cell["arguments"]
        if given["kind"] == "cost":
            rows.append([
                f"{r['weights']:,}", str(given["n"]), f"{r['forward_seconds']:.2g} s", f"{r['product_seconds']:.2g} s",
                f"{r['forward_passes']:.0f}",
            ])  # fmt: skip
    costs = table(["weights", "pictures", "forward pass", "product of 4 columns", "in forward passes"], rows)
    rows = []
    for name, cell in cells.items():
        r, given = cell["result"], cell["arguments"]
        if given["kind"] != "cost":
            rows.append([
                name, f"{r['weights']:,}", str(given["n"]), r["method"].partition(",")[0],
                f"{r['fit_seconds']:.0f} s", f"{cell['peak_memory_bytes'] / 1e9:.1f} GB",
                f"{r['predict_seconds_a_picture']:.2g} s",
                f"{r['nll_over_the_network']:+.3f} ± {r['standard_error']:.3f}",
            ])  # fmt: skip
    fits = table(
        ["posterior", "weights", "pictures", "method", "fit", "peak memory", "prediction of a picture",
         "NLL over the network's"], rows,
    )  # fmt: skip
    curves = [over_precision(name, cell["result"]) for name, cell in cells.items() if "log_evidence" in cell["result"]]
    return "\n\n".join([costs, growth(cells), *([fits] if rows else []), *curves])


def growth(cells: dict) -> str:
    """Exponents of the cost of a product, by least squares in logarithms."""
    found = [(cell["result"], cell["arguments"]) for cell in cells.values() if cell["arguments"]["kind"] == "cost"]
    over_d = [(r["weights"], r) for r, given in found if given["n"] == 16]
    over_n = [(given["n"], r) for r, given in found if given["width"] == 19]

    def exponent(points: list[tuple[int, dict]], key: str) -> float:
        return statistics.linear_regression([math.log(at) for at, _ in points], [math.log(r[key]) for _, r in points])[
            0
        ]

    return (
        f"A product grows like the number of weights to the power {exponent(over_d, 'product_seconds'):.2f} and that of "
        f"pictures to the power {exponent(over_n, 'product_seconds'):.2f}, a forward pass to the powers "
        f"{exponent(over_d, 'forward_seconds'):.2f} and {exponent(over_n, 'forward_seconds'):.2f}: in forward passes the "
        f"powers are {exponent(over_d, 'forward_passes'):.2f} and {exponent(over_n, 'forward_passes'):.2f}."
    )


def over_precision(name: str, r: dict) -> str:
    """Evidence and held-out density at a few precisions; they need not agree on the best."""
    held_out = {float(at): value for at, value in r["held_out_curve"].items()}
    rows = [
        [at, f"{value:,.0f}", f"{held_out[min(held_out, key=lambda one: abs(math.log(one / float(at))))]:.2f}"]
        for at, value in r["log_evidence"].items()
    ]
    return f"{name}, {r['weights']:,} of them:\n\n" + table(
        ["prior precision", "log evidence", "held-out log density"], rows
    )


def page(parts: dict) -> str:
    return f"""
## Several processes

A small convolutional network with 1,418 weights, by gloo on one machine, a thread each. Work is processor time within the fit, so that waiting for
a busy machine does not count. The prediction counts operations alone ([the model](../docs/how_to/several_machines.md#what-several-ranks-cost)); what every
rank does for itself, such as small decompositions, weighs more in so small a fit.

{ranks(parts["ranks"])}

{blocks(parts["ranks"])}

## Fits that are killed

A process fits with a checkpoint and is killed (SIGKILL) at a random moment; the next goes on, until one ends by itself. Its draws are compared to
the bit with those of a fit that nothing disturbed, and after every kill each file under its final name is read and checked.

{kills(parts["kills"])}

## Error bars over simulated data sets

Weights are drawn from the prior and data from these weights, then the whole pipeline is run. Of a right method the rank of the truth among 19 draws
is uniform, and central intervals hold it as often as they say, here ± the binomial standard error if they do. Class labels make Laplace's
approximation inexact. The trained network is no such case: a teacher of another width makes the data, its student is trained on them, and precision and
noise are found by evidence; nothing says that its intervals must be right.

{calibration(parts["calibration"])}

## Large networks

ResNet-18s and a ResNet-50 of several widths for pictures of 32 × 32, random convolutions with a head fitted to CIFAR-10 pictures. Fits of all weights had
300 MB and 9 GB beside the network and the data; peak memory is that of the whole process, in which predictions and evidence at other
precisions came after the fit without a limit. Times of fits are of one thread of a machine with other work to do. Evidence and held-out pictures
disagree here: convolutions were not trained, and evidence asks what all weights could have learnt.

{large(parts["large_networks"])}

## Damaged and hostile files

Files mutated at random, behind their checksums too, each read within ten seconds and two gigabytes, without starting a program or opening a
connection.

{fuzz(parts["fuzz"])}
"""
