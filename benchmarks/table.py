"""Write docs/benchmarks.md from the results; `--check` only says whether it is up to date."""

import sys
from pathlib import Path

import harness

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def ridge(cells: dict) -> str:
    rows = [
        "| n × d | scikit-learn | lapwing | ratio | peak memory (theirs / ours) | prior precision differs by | evidence gained |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cell in cells.items():
        r = cell["result"]
        ours, theirs = (sorted(r[key])[len(r[key]) // 2] for key in ("our_seconds", "their_seconds"))
        rows.append(
            f"| {name} | {theirs:.3g} s ({r['their_iterations']} iterations) | {ours:.3g} s | **{r['speedup']:.1f}×** | "
            f"{r['their_peak_bytes'] / 1e9:.2f} / {r['our_peak_bytes'] / 1e9:.2f} GB | "
            f"{r['prior_precision_difference']:.1e} | {r['log_evidence_gain']:+.1e} |"
        )
    return "\n".join(rows)


def agreement(cells: dict) -> str:
    rows = [
        "| data | n × d | noise precision | prior precision | coefficients | predictive std | at scikit-learn's default tolerance |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, cell in cells.items():
        r = cell["result"]
        converged = "" if r["their_converged"] else " (scikit-learn did not converge)"
        rows.append(
            f"| {name}{converged} | {r['n']:,} × {r['d']} | {r['noise_precision_difference']:.1e} | "
            f"{r['prior_precision_difference']:.1e} | {r['coefficient_difference']:.1e} | {r['std_difference']:.1e} | "
            f"{r['prior_precision_difference_at_their_default']:.1e} |"
        )
    return "\n".join(rows)


def page() -> str:
    parts = {path.stem: harness.read(path) for path in sorted(harness.RESULTS.glob("*.jsonl"))}
    some = next(iter(parts["ridge"].values()))
    versions = ", ".join(f"{name} {number}" for name, number in some["versions"].items() if name != "lapwing")
    return f"""# Benchmarks

Written by `benchmarks/table.py` from `benchmarks/results/*.jsonl`; each of those lines holds its command, commit, versions
and times. Run them again with `make bench`. {some["cores"]} cores, Python {some["python"]}, {versions}.

## BayesianRidge against scikit-learn's

Both fit the same data in the same process, medians of several fits. "Evidence gained" is our log evidence minus theirs:
theirs stops when the coefficients move by less than 1e-3, ours at the maximum.

{ridge(parts["ridge"])}

## The same results on real data

Relative differences to scikit-learn's `BayesianRidge` run to a tolerance of 1e-8, on standardised columns. The last
column is the difference of the prior precision when scikit-learn is left at its default tolerance.

{agreement(parts["ridge_agreement"])}
"""


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(
            0
            if PAGE.read_text() == page()
            else "docs/benchmarks.md is not what the results say: run benchmarks/table.py"
        )
    PAGE.write_text(page())
