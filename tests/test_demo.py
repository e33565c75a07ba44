"""The demo does its job and its error bars hold on held-out data."""

import re

from lapwing import demo


def test_demo_writes_plots_and_calibrated_numbers(tmp_path, capsys):
    demo.main(tmp_path)
    printed = capsys.readouterr().out
    assert (tmp_path / "diabetes.png").stat().st_size > 10_000
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    (coverage,) = [line for line in printed.splitlines() if "95 % intervals" in line]
    diabetes, digits = (float(value) for value in re.findall(r"([\d.]+)%", coverage))
    # 133 patients and 540 pictures: 95 % give or take three binomial standard errors (pixels of a picture depend on each other)
    assert 89.3 <= diabetes <= 100
    assert 92.1 <= digits <= 97.9
