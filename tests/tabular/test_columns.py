"""From tables to inputs: scaling, categories by dtype, missing values, and clear errors for what is neither."""

import numpy as np
import pandas as pd
import pytest

from lapwing.tabular.columns import Encoding, Table, has_labels, read_frame

FRAME = pd.DataFrame({
    "size": [1.0, 2.0, np.nan, 4.0, 6.0],
    "colour": ["red", "blue", "red", None, "green"],
    "code": pd.Categorical([3, 1, 3, 3, 1]),
    "count": pd.array([2, 4, 6, 8, 10], dtype="Int64"),
    "flag": [True, False, True, True, False],
})  # fmt: skip


def encoded(frame, weights=None):
    table = read_frame(frame)
    return Encoding.of(table, np.ones(len(frame)) if weights is None else weights), table


def test_columns_of_a_frame_become_standardised_inputs():
    encoding, table = encoded(FRAME)
    inputs = encoding.inputs(table)
    # size, count, flag, where size is missing, colour (blue, green, red, missing), code (1, 3)
    assert encoding.columns.tolist() == [0, 3, 4, 0, 1, 1, 1, 1, 2, 2]
    np.testing.assert_allclose(inputs.mean(0), 0, atol=1e-15)
    np.testing.assert_allclose(inputs.std(0), 1)
    assert inputs[2, 0] == pytest.approx(0, abs=1e-15)  # missing is the mean
    assert (inputs[:, 3] > 0).tolist() == [False, False, True, False, False]
    assert encoding.categories[0].levels == ("blue", "green", "red", None)
    assert encoding.categories[1].levels == (1, 3)


def test_a_new_level_has_none_and_a_new_gap_is_the_mean():
    encoding, _ = encoded(FRAME.dropna())
    new = FRAME.iloc[[0, 2]].assign(colour=["violet", "red"])
    raw = encoding.inputs(read_frame(new, frozenset({1, 2}))) * encoding.scale + encoding.mean
    assert raw[0, 3:6].round(12).tolist() == [0, 0, 0]  # of blue, green, red
    assert raw[1, 0] == pytest.approx((1 + 2 + 6) / 3)


def test_constant_columns_stay_unscaled():
    matrix = np.array([[1.0, 7.0, 1e9], [2.0, 7.0, 1e9], [4.0, 7.0, 1e9]])
    encoding = Encoding.of(Table.of_numbers(matrix), np.ones(3))
    assert encoding.scale[1:].tolist() == [1, 1]
    new = encoding.inputs(Table.of_numbers(np.array([[1.0, 8.0, 1e9 + 2]])))
    assert new[0, 1:].tolist() == [1, 2]


def test_a_column_of_gaps_alone_is_no_number():
    matrix = np.array([[1.0, np.nan], [2.0, np.nan], [4.0, np.nan]])
    inputs = Encoding.of(Table.of_numbers(matrix), np.ones(3)).inputs(Table.of_numbers(matrix))
    assert np.isfinite(inputs).all()


def test_weights_count_rows():
    times = np.array([1, 0, 2, 1, 3])
    weighted, table = encoded(FRAME, times.astype(float))
    repeated, _ = encoded(FRAME.loc[FRAME.index.repeat(times)], np.ones(7))
    assert [one.levels for one in weighted.categories] == [one.levels for one in repeated.categories]
    np.testing.assert_allclose(weighted.inputs(table), repeated.inputs(table), rtol=1e-12, atol=1e-14)


def test_only_frames_with_labels_need_reading():
    assert has_labels(FRAME)
    assert not has_labels(FRAME[["size", "count", "flag"]])
    assert not has_labels(FRAME[["size"]].to_numpy())


def test_objects_that_are_numbers_are_numbers():
    table = read_frame(pd.DataFrame({"a": np.array([1, 2.5, None], dtype=object), "b": ["x", "y", "x"]}))
    assert table.numeric == (0,)
    assert np.isnan(table.numbers[2, 0])


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-03"]), "holds dates.*days since"),
        (np.array([1.5, "?", 2.5], dtype=object), "mixes numbers with '\\?'.*NaN"),
        (np.array([1j, 2j, 3j]), "complex"),
        (np.array([(1, 2), (3, 4), None, 0], dtype=object)[:3], "tuple"),
        ([1.0, np.inf, 2.0], "infinity"),
    ],
    ids=["dates", "mixed", "complex", "tuples", "infinity"],
)
def test_what_is_neither_number_nor_category_is_refused(column, message):
    frame = pd.DataFrame({"other": ["a", "b", "a"], "this": column})
    with pytest.raises(ValueError, match=f"column 'this'.*{message}"):
        read_frame(frame)


def test_text_and_identifiers_are_refused():
    frame = pd.DataFrame({"name": [f"person {k}" for k in range(150)]})
    with pytest.raises(ValueError, match="column 'name' has 150 different labels.*identifiers"):
        Encoding.of(read_frame(frame), np.ones(150))
    days = [f"2024-{1 + day // 28:02}-{1 + day % 28:02}" for day in range(150)]
    with pytest.raises(ValueError, match=r"column 'day' has 150 different labels.*dates in words.*to_datetime"):
        Encoding.of(read_frame(pd.DataFrame({"day": days})), np.ones(150))
