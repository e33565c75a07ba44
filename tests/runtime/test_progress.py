"""What a person sees of long work: a line that changes on a terminal, few lines in a log."""

import sys

from lapwing.runtime import progress


def test_a_log_gets_lines_now_and_then_and_no_control_codes(capsys, monkeypatch):
    clock = iter([0.0, 0.0, 4.0, 11.0, 11.0, 12.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    show = progress.reporter(True)
    for phase in ("epoch 1", "epoch 2", "epoch 3", "", "epoch 4"):
        show(phase)
    assert capsys.readouterr().err == "lapwing: epoch 1\nlapwing: epoch 3\n"
    progress.reporter(None)("a log that nobody asked for")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_one_line_that_is_wiped(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    show = progress.reporter(None)
    show("half done")
    show("")
    assert capsys.readouterr().err == "\r\033[Klapwing: half done\r\033[K"
