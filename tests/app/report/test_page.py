"""The page holds what the record holds, needs nothing else, and runs nothing that a file could bring."""

import base64
import dataclasses
import hashlib
import re
import struct
import time
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest
from scipy.stats import norm

from lapwing.app import records, report
from lapwing.app.report.markup import h, png
from lapwing.app.report.svg import Axis, Frame, axis, log_axis, number, tenths
from tests.app.report import runs

PAGES = {
    "classification": lambda: [runs.classifier()],
    "regression": lambda: [runs.wave()],
    "table": lambda: [runs.houses()],
    "several": lambda: [runs.committee()],
    "comparison": lambda: [runs.classifier(), runs.classifier(seed=3), runs.wave(), runs.failed()],
    "failed": lambda: [runs.failed()],
    "empty": lambda: [records.Record("empty", "classification")],
    "hostile": lambda: [runs.hostile()],
}


class Reader(HTMLParser):
    """Tags must close in order; collects what a page refers to and what it says."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self.links += [value for key, value in attributes if key in {"src", "href", "action", "srcset", "xlink:href"}]
        assert not [key for key, _ in attributes if key.startswith("on") or key == "style"], attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.mark.parametrize("kind", PAGES)
def test_the_page_is_whole_and_needs_no_network(kind):
    page = report.page(PAGES[kind]())
    found = Reader(page)
    assert all(link.startswith(("data:", "#")) for link in found.links)
    assert not re.search(r"url\(|@import|https?://", page)
    assert [tag for tag, _ in found.tags].count("script") == 1
    charts = [attributes for tag, attributes in found.tags if tag == "svg" and attributes.get("class") == "chart"]
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in charts)
    assert all(attributes["alt"] for tag, attributes in found.tags if tag == "img")
    assert not re.search(r"\bnan\b|Infinity|None", re.sub(r"<script>.*</script>", "", page, flags=re.DOTALL))


def test_only_our_own_script_may_run():
    page = report.page([runs.hostile()])
    policy = dict(
        part.strip().split(" ", 1)
        for part in re.search(r'Policy" content="([^"]*)"', page)[1].replace("&#x27;", "'").split(";")
    )
    script = re.search(r"<script>(.*)</script>", page, re.DOTALL)[1]
    assert policy["script-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
    assert policy["default-src"] == "'none'"


def test_hostile_strings_are_shown_as_text():
    page = report.page([runs.hostile(), runs.hostile()])
    assert runs.HOSTILE not in page
    assert "<img src=x" not in page
    assert runs.HOSTILE in "".join(Reader(page).text)


def test_ten_thousand_points_make_a_small_page_quickly():
    for record in (runs.classifier(10_000), runs.wave(10_000)):
        started = time.process_time()
        size = len(report.page([record]).encode())
        assert size < 3e6
        assert time.process_time() - started < 5  # of this process; wall-clock suffers from others


def test_the_page_shows_what_the_record_says():
    record = runs.classifier()
    text = " ".join(Reader(report.page([record])).text)
    for words in (
        "conv2",
        "31.0 %",
        "held-out density",
        "Temperature",
        "6f1e0a9b3c5d7e21",
        "temperature scaling",
        "letters",
        "rotated 60°",
        "812 MiB",
        "torch 2",
    ):
        assert words in text
    scored = report.scored(record).evaluations[0].method("lapwing")
    targets = record.evaluations[0].targets
    probs = scored.probs.astype(float)
    assert scored.metrics["accuracy"].value == pytest.approx((probs.argmax(1) == targets).mean())
    assert scored.metrics["NLL"].value == pytest.approx(-np.log(probs[np.arange(len(probs)), targets]).mean())
    assert f"{scored.metrics['NLL'].value:.3f}" in text


@pytest.mark.parametrize(
    ("width", "level", "words"),
    [(1.0, "good", "right width"), (1.3, "poor", "(29|30|31) % too wide"), (0.8, "poor", "(19|20|21) % too narrow")],
)
def test_the_verdict_measures_the_width_of_error_bars(width, level, words):
    found = report.verdict(runs.wave(4_000, width=width))
    assert found.level == level
    assert re.search(words, found.headline)


def test_the_verdict_gives_reasons():
    rng = np.random.default_rng(0)
    tails = records.regression(
        "test", rng.standard_t(2, size=3_000) + 1, {"lapwing": (np.zeros(3_000), np.ones(3_000))}
    )
    reasons = " ".join(report.verdict(records.Record("tails", "regression", (tails,))).reasons)
    assert "below the targets by" in reasons
    assert "tails heavier" in reasons
    uneven = np.repeat([1.0, 1.0, 3.0], 200)
    shape = records.regression(
        "test", uneven * rng.normal(size=600), {"lapwing": (np.zeros(600), np.linspace(1, 1.1, 600))}
    )
    assert "do not tell well where" in " ".join(report.verdict(records.Record("a", "regression", (shape,))).reasons)


def test_the_verdict_tells_confidence_from_accuracy():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 0.95, size=5_000)
    for shift, level, words in (
        (0.0, "good", "Calibrated"),
        (-0.1, "poor", "Overconfident by 10"),
        (0.03, "fair", "Underconfident by [23]"),
    ):
        targets = (rng.random(5_000) > confidence + shift).astype(int)
        test = records.classification("test", targets, {"lapwing": np.stack([confidence, 1 - confidence], 1)})
        found = report.verdict(records.Record("coins", "classification", (test,)))
        assert found.level == level
        assert re.match(words, found.headline)
    uneven = (rng.random(5_000) > np.where(confidence < 0.775, confidence + 0.1, confidence - 0.1)).astype(int)
    test = records.classification("test", uneven, {"lapwing": np.stack([confidence, 1 - confidence], 1)})
    assert "not at every confidence" in report.verdict(records.Record("coins", "classification", (test,))).headline


def test_a_verdict_holds_for_other_sets_or_says_that_it_does_not():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 0.95, size=5_000)
    probs = {"lapwing": np.stack([confidence, 1 - confidence], 1)}
    test, alike, turned = (
        records.classification(name, (rng.random(5_000) > confidence - shift).astype(int), probs)
        for name, shift in (("test", 0.0), ("alike", 0.0), ("turned", 0.3))
    )
    found = report.verdict(records.Record("coins", "classification", (test, alike, turned)))
    right = 100 * (turned.targets == 0).mean()
    says = f"Overconfident on turned: {100 * confidence.mean():.1f} % confident, {right:.1f} % correct"
    assert (found.level, found.headline) == ("fair", f"Calibrated on test. {says}")
    assert found.reasons[1] == f"{says}."
    assert report.verdict(records.Record("coins", "classification", (test, alike))).level == "good"
    assert report.verdict(records.Record("coins", "classification", (turned, test))).headline.startswith(
        "Overconfident"
    )

    standard = {"lapwing": (np.zeros(5_000), np.ones(5_000))}
    near, far = (
        records.regression(name, size * rng.normal(size=5_000), standard) for name, size in (("test", 1), ("far", 3))
    )
    found = report.verdict(records.Record("wave", "regression", (near, far)))
    assert found.level == "fair"
    assert re.fullmatch(
        r"On far errors are (2\.9\d*|3(\.0\d*)?) ± 0\.0\d+ times as large as predicted\.", found.reasons[1]
    )


def test_names_of_sets_are_whole_where_there_is_room():
    rng = np.random.default_rng(0)
    sets = [
        records.classification(name, rng.integers(2, size=50), {"lapwing": np.full((50, 2), 0.5)})
        for name in ("upright digits", "digits rotated by 45°")
    ]
    text = report.page([records.Record("digits", "classification", tuple(sets))])
    assert re.search(r"<text[^>]*>digits rotated by 45°</text>", text)


def test_chance_is_rarely_exceeded_by_the_calibrated():
    rng = np.random.default_rng(3)
    beyond = 0
    for _ in range(60):
        confidence = rng.uniform(0.5, 1, size=300)
        targets = (rng.random(300) > confidence).astype(int)
        test = records.classification("test", targets, {"lapwing": np.stack([confidence, 1 - confidence], 1)})
        beyond += report.verdict(records.Record("coins", "classification", (test,))).level != "good"
    assert beyond <= 12  # one in twenty by each of two looks: six expected, 12 is 2.5 standard deviations more


def test_extreme_records_still_make_a_page():
    test = records.classification("test", [1, 0], {"MAP": [[1, 0], [0, 1]], "lapwing": [[0.5, 0.5], [0.5, 0.5]]})
    one = records.classification("test", [1], {"MAP": [[1, 0]]})
    flat = records.regression("test", [1.0, 1.0], {"lapwing": ([1.0, 1.0], [1.0, 1.0])}, inputs=[2.0, 2.0])
    several = records.regression("test", np.ones((5, 3)), {"lapwing": (np.zeros((5, 3)), np.ones((5, 3)))})
    curve = records.Curve(np.array([1.0]), np.inf, held_out=np.array([-np.inf]))
    for task, evaluation in (
        ("classification", test),
        ("classification", one),
        ("regression", flat),
        ("regression", several),
    ):
        Reader(report.page([records.Record("extreme", task, (evaluation,), curve=curve)]))
    with pytest.raises(ValueError, match="at least one record"):
        report.page([])


def test_a_page_that_cannot_be_written_leaves_nothing(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        report.write(tmp_path / "file" / "page.html", [runs.failed()])
    assert report.write(tmp_path / "new" / "page.html", [runs.failed()]).read_text().startswith("<!doctype html>")


def test_pictures_are_png_files():
    pixels = np.random.default_rng(0).integers(256, size=(5, 7, 3)).astype(np.uint8)
    data = png(pixels)
    width, height = struct.unpack(">II", data[16:24])
    start = data.index(b"IDAT")
    (size,) = struct.unpack(">I", data[start - 4 : start])
    raw = np.frombuffer(zlib.decompress(data[start + 4 : start + 4 + size]), np.uint8).reshape(5, 22)
    assert (width, height) == (7, 5)
    assert np.array_equal(raw[:, 1:].reshape(5, 7, 3), pixels)


def test_charts_put_points_where_the_axes_say():
    frame = Frame(Axis("x", 0.0, 10.0), Axis("y", 1.0, 100.0, log=True))
    left, right = frame.across([0.0, 10.0])
    assert frame.across(2.5) == pytest.approx(left + (right - left) / 4)
    bottom, top = frame.up([1.0, 100.0])
    assert frame.up(10.0) == pytest.approx((bottom + top) / 2)
    assert bottom > top
    assert [text for _, text in log_axis("p", [1e-3, 1e3]).marks()] == ["10⁻³", "10⁻¹", "10¹", "10³"]
    assert [text for _, text in axis("a", [0, 9.9]).marks()] == ["0", "2.5", "5", "7.5", "10"]
    assert number(12345.678) == "12,346"


def test_attributes_and_text_are_escaped():
    assert h("p", "<b>", title='"<') == '<p title="&quot;&lt;">&lt;b&gt;</p>'


def test_a_record_that_was_scored_is_not_scored_again():
    record = report.scored(runs.wave())
    first = record.evaluations[0]
    known = dataclasses.replace(first.predictions[0], metrics={"NLL": records.Measured(42.0)})
    again = dataclasses.replace(record, evaluations=(dataclasses.replace(first, predictions=(known,)),))
    assert "42" in report.page([again])


def test_a_curve_without_evidence_says_nothing_of_it():
    record = runs.classifier()
    curve = dataclasses.replace(record.curve, log_evidence=np.full(len(record.curve.precision), np.nan))
    reasons = report.verdict(dataclasses.replace(record, curve=curve)).reasons
    assert not any("marginal likelihood of" in reason for reason in reasons)
    assert any("marginal likelihood of" in reason for reason in report.verdict(record).reasons)


def test_the_verdict_says_what_the_raw_network_was_like():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 0.9, size=4_000)
    targets = (rng.random(4_000) > confidence).astype(int)

    def reasons(**shifts):
        tables = {
            name.replace("_", " "): np.stack([confidence + shift, 1 - confidence - shift], 1)
            for name, shift in shifts.items()
        }
        test = records.classification("test", targets, tables)
        return " ".join(report.verdict(records.Record("coins", "classification", (test,))).reasons)

    assert "The raw network is overconfident by 8." in reasons(lapwing=0.0, MAP=0.08)
    assert "underconfident already, by 7." in reasons(lapwing=-0.08, MAP=-0.08)
    assert "The raw network: the same NLL" in reasons(lapwing=-0.08, MAP=-0.08)
    assert re.search(
        r"raw network is underconfident by 7\.\d points; lapwing brings this to 0\.\d", reasons(lapwing=0.0, MAP=-0.08)
    )
    assert "The raw network is" not in reasons(lapwing=0.0, MAP=0.0)
    assert "The raw network: better (NLL −0.0" in reasons(lapwing=0.08, MAP=0.0)
    assert "The raw network: worse (NLL +0.0" in reasons(lapwing=0.0, MAP=0.08)
    assert "those data were harder" in reasons(lapwing=-0.05, temperature_scaling=-0.06, MAP=0.0)
    assert "those data were easier" in reasons(lapwing=0.05, temperature_scaling=0.06, MAP=0.08)
    assert "those data" not in reasons(lapwing=0.05, temperature_scaling=0.0, MAP=0.08)
    assert "those data" not in reasons(lapwing=-0.05, temperature_scaling=0.05, MAP=0.08)


def test_small_leverages_keep_their_digits():
    """Under a stiff prior every leverage is small: 0.000 in each row would say nothing."""
    found = records.Influence(np.array([4.567e-5, 1.2e-4, 0.0312, 0.5]), np.array([-0.5, -12.25, -0.0001, 0.0]))
    shown = report.page([records.Record("stiff", "regression", influence=found)])
    assert all(f"<td>{text}</td>" in shown for text in ("4.57e-5", "1.2e-4", "0.0312", "0.5", "−12.2", "−1e-4"))


def coins(**shifts):
    """Methods whose confidence is off by so much on the same 4,000 coins."""
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.6, 0.9, size=4_000)
    targets = (rng.random(4_000) > confidence).astype(int)
    tables = {
        name.replace("_", " "): np.stack([confidence + shift, 1 - confidence - shift], 1)
        for name, shift in shifts.items()
    }
    test = records.classification("test", targets, tables)
    return records.Record("coins", "classification", (test,), solve=records.Solve(temperature=1.5))


@pytest.mark.parametrize(
    ("shifts", "words"),
    [
        (
            {"lapwing": 0.0, "raw_network": 0.08, "temperature_scaling": 0.0},
            "Temperature scaling (T = 1.50) is as good",
        ),
        (
            {"lapwing": 0.08, "raw_network": 0.09, "temperature_scaling": 0.0},
            "Temperature scaling (T = 1.50) is better",
        ),
        ({"lapwing": 0.0, "raw_network": 0.0, "temperature_scaling": 0.05}, "The raw network is as good here"),
        ({"lapwing": 0.0, "raw_network": 0.08, "temperature_scaling": 0.08}, "Use lapwing's probabilities"),
        ({"lapwing": 0.0}, ""),
    ],
)
def test_the_recommendation_is_the_simplest_method_that_is_not_beaten(shifts, words):
    record = coins(**shifts)
    advice = report.verdict(record).advice
    assert advice.startswith(words)
    if words:
        ours = record.evaluations[0].predictions[0].probs
        nll = -np.log(ours[np.arange(4_000), record.evaluations[0].targets]).mean()
        assert f"{nll:.3f}" in advice
        text = report.page([record])
        assert text.index("Recommendation: ") < text.index("confident on average")


def test_abstention_counts_answers_and_mistakes():
    record = coins(lapwing=0.0, raw_network=0.08)
    one = record.evaluations[0].method("raw network")
    sure = one.probs.max(1) >= 0.8
    wrong = int((sure & (one.probs.argmax(1) != record.evaluations[0].targets)).sum())
    assert f"<td>{int(sure.sum()):,} answered, {wrong:,} wrong</td>" in report.page([record])


def test_thresholds_with_a_guarantee_are_the_lowest_that_keep_to_it():
    """Among 99 answers, by hand: at a risk of 5 % four may be wrong above the threshold, at 1 % none."""
    confidence = np.linspace(0.51, 0.99, 99)
    targets = np.where(np.isin(np.arange(99), [10, 20, 30, 40, 50, 60]), 1, 0)  # six wrong answers
    probs = np.stack([confidence, 1 - confidence], 1)
    record = records.Record("coins", "classification", (records.classification("test", targets, {"lapwing": probs}),))
    text = report.page([record])
    for risk, wrong in (("1 %", 60), ("2 %", 50), ("5 %", 20)):
        cell = f"{tenths((98 - wrong) / 99)} answered, above {tenths(confidence[wrong])}"
        assert f'<th scope="row">{risk}</th><td>{cell}</td>' in text
    assert '<th scope="row">10 %</th><td>all answered</td>' in text
    few = records.classification("test", targets[:60], {"lapwing": probs[:60]})
    assert "needs 99 inputs" in report.page([dataclasses.replace(record, evaluations=(few,))])
    tuned = dataclasses.replace(record.evaluations[0], name="validation data, used for tuning too")
    assert "Thresholds with a guarantee" not in report.page([dataclasses.replace(record, evaluations=(tuned,))])


def test_labels_that_look_wrong_have_a_section(tmp_path):
    record = runs.classifier()
    text = report.page([record])
    assert "12 ± 4 of 400 training labels disagree" in text
    assert '<th scope="row">217</th><td>zero</td><td>four</td><td>0.1 %</td>' in text
    assert "likely wrong labels or outliers" not in text  # which would be a second list of the same
    assert "likely wrong labels or outliers" in report.page([dataclasses.replace(record, suspects=None)])
    records.save(record, tmp_path)
    assert (records.load(tmp_path).suspects.given == record.suspects.given).all()
    odd = dataclasses.replace(record.suspects, given=record.suspects.given - 1)
    with pytest.raises(ValueError, match="suspects, given: expected class numbers from 0"):
        records.save(dataclasses.replace(record, suspects=odd), tmp_path)


def test_the_most_confident_mistakes_come_first():
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.99, 0.01], [0.4, 0.6]])
    record = records.Record(
        "names", "classification", (records.classification("test", [1, 1, 1, 0], {"lapwing": probs}),),
        data=records.Data(classes=("cat", "dog")),
    )  # fmt: skip
    elsewhere = dataclasses.replace(record.evaluations[0], places=np.array([4, 7, 11, 30]))
    assert '<th scope="row">11</th><td>cat</td>' in report.page([dataclasses.replace(record, evaluations=(elsewhere,))])
    text = report.page([record])
    rows = re.findall(r">(\d)</th><td>(cat|dog)</td><td>([\d.]+ %)</td><td>(cat|dog)</td><td>([\d.]+ %)</td>", text)
    assert rows == [
        ("2", "cat", "99.0 %", "dog", "1.0 %"),
        ("0", "cat", "90.0 %", "dog", "10.0 %"),
        ("3", "dog", "60.0 %", "cat", "40.0 %"),
    ]


def test_scores_by_class_are_those_of_the_confusion_matrix():
    rng = np.random.default_rng(4)
    probs, targets = rng.dirichlet(np.ones(3), size=70), rng.integers(3, size=70)
    record = records.Record(
        "kinds", "classification", (records.classification("test", targets, {"lapwing": probs}),),
        data=records.Data(classes=("ant", "bee", "cat")),
    )  # fmt: skip
    text = Reader(report.page([record])).text
    said = probs.argmax(1)
    place = text.index("most often taken for")
    for label, name in enumerate(record.data.classes):
        row = text[text.index(name, place) :]
        own, answers = targets == label, said == label
        assert row[1] == str(own.sum())
        assert row[2] == f"{100 * (own & answers).sum() / own.sum():.1f} %"
        assert row[4] == f"{100 * (own & answers).sum() / answers.sum():.1f} %"
        assert row[6] == f"{100 * probs[own, label].mean():.1f} %"
        assert row[8] == f"{-np.log(probs[own, label].astype(np.float32)).mean():.3f}"
        wrong = np.bincount(said[own], minlength=3) * (np.arange(3) != label)
        assert row[10] == f"{record.data.classes[wrong.argmax()]} ({wrong.max()})"


def test_a_table_shows_what_matters_and_its_own_distribution():
    """Coverage and NLL are those of the heavy tails, not of a Gaussian with the same standard deviation."""
    record = runs.houses(2_000)
    page = report.page([record])
    text = " ".join(Reader(page).text)
    names = re.findall(r'<th scope="row">([^<]*)</th><td><div class="shared"', page)
    assert names == sorted(record.relevance, key=record.relevance.get, reverse=True)
    assert "Over the most relevant input: area" in text
    assert "Errors over area" in text
    test = report.scored(record).evaluations[0]
    ours = test.method("lapwing")
    inside = (ours.lower_90 < test.targets) & (test.targets < ours.upper_90)
    assert ours.metrics["coverage of 90 %"].value == pytest.approx(inside.mean())
    assert ours.metrics["NLL"].value == pytest.approx(-ours.log_density.mean())
    z = norm.ppf(ours.cdf)
    assert ours.metrics["rms z"].value == pytest.approx(np.sqrt((z**2).mean()))
    assert (
        ours.metrics["rms z"].standard_error < 0.025
    )  # that of normal numbers, 1 / sqrt(4,000), and not of heavy tails
    gaussian = (np.abs(test.targets - ours.mean) < 1.6448536 * ours.std).mean()
    assert abs(gaussian - inside.mean()) > 0.005
    assert f"{100 * inside.mean():.1f} % of 2,000 test targets are inside their 90 % interval" in text
    assert "--validation" not in text
    assert "raw network" not in text


def test_one_column_has_bands():
    record = dataclasses.replace(runs.houses(), relevance={"area": 1.0})
    text = " ".join(Reader(report.page([record])).text)
    assert "The dark band holds the function" in text
    assert "Over the most relevant input" not in text


def test_every_network_is_scored_beside_all():
    record = runs.committee()
    text = " ".join(Reader(report.page([record])).text)
    test = record.evaluations[0]
    rows = np.arange(len(test.targets))
    for one in test.members:
        nll = -np.log(one.probs[rows, test.targets].astype(float))
        ours = -np.log(test.method("lapwing").probs[rows, test.targets].astype(float))
        assert re.search(rf"{one.method} .{{0,60}}{nll.mean():.3f}", text)
        assert f"{(nll - ours).mean():+.4f}".replace("-", "−") in text
    scores = test.method("lapwing").scores
    share = scores["between networks"].mean() / scores["mutual information"].mean()
    assert f"{100 * share:.1f} % of the epistemic information is disagreement between the networks" in text
    assert "The mean of the networks is better than lapwing here" in text


def test_spread_of_numbers_within_and_between_networks():
    rng = np.random.default_rng(0)
    between, within = rng.uniform(0.5, 1, size=(2, 80))
    mean = rng.normal(size=80)
    test = records.regression(
        "test", mean + rng.normal(size=80), {"lapwing": (mean, np.sqrt(1 + between**2 + within**2))},
        epistemic_std={"lapwing": np.hypot(between, within)}, scores={"lapwing": {"between networks": between}},
        members={"network 1": (mean, np.ones(80)), "network 2": (mean, np.ones(80))},
    )  # fmt: skip
    text = " ".join(Reader(report.page([records.Record("two", "regression", (test,))])).text)
    share = (between**2).mean() / (between**2 + within**2).mean()
    assert f"{100 * share:.1f} % of the epistemic variance is disagreement" in text
    assert f"within networks {within.mean():.3f}; between networks {between.mean():.3f}" in text


def test_other_sets_have_their_uncertainty_beside_that_of_the_first():
    record = runs.classifier()
    text = " ".join(Reader(report.page([record])).text)
    first, turned = (one.method("lapwing").scores["novelty"] for one in record.evaluations[:2])
    area = (turned[:, None] > first).mean()
    assert re.search(rf"rotated 30° lapwing novelty {first.mean():.3} {turned.mean():.3} {area:.3f}", text)


def test_contents_lead_to_every_section():
    page = report.page([runs.classifier(), runs.wave(), runs.houses(), runs.committee(), runs.failed()])
    links, places = re.findall(r'<a href="#([^"]*)"', page), re.findall(r'<section id="([^"]*)"', page)
    assert links == [place for place in places if not place.startswith("run-4-")]
    assert len(set(places)) == len(places) > 20


def test_runs_that_tie_are_not_bold():
    same = [runs.classifier(), dataclasses.replace(runs.classifier(), name="Again")]
    assert 'data-tip="best' not in report.page(same).split('id="run-0"')[0]
    test = same[1].evaluations[0]
    worse = dataclasses.replace(
        test,
        predictions=tuple(dataclasses.replace(one, probs=np.full_like(one.probs, 0.2)) for one in test.predictions),
    )
    other = dataclasses.replace(same[1], evaluations=(worse,))
    assert report.page([same[0], other]).split('id="run-0"')[0].count('data-tip="best NLL"') == 1
    different = [runs.classifier(), runs.classifier(seed=3)]
    assert "tested on different data" in report.page(different)


def test_few_points_cannot_tell():
    z = np.random.default_rng(1).normal(size=40)
    few = records.regression("test", z, {"lapwing": (np.zeros(40), np.ones(40))})
    found = report.verdict(records.Record("few", "regression", (few,)))
    inside = int((np.abs(z) < 1.6448536).sum())
    assert found.level == "none"
    assert (
        found.headline
        == f"Too few test points to tell: {inside} of 40 targets fall inside their 90 % interval (36 expected)"
    )
    assert "test on more data" in found.advice


def test_ties_are_not_bold():
    tie, ahead = (report.page([coins(lapwing=0.0, raw_network=shift)]) for shift in (1e-4, 0.08))
    assert 'data-tip="best NLL"' not in tie
    assert ahead.count('data-tip="best NLL"') == 1
