"""Columns from a formula, as a scikit-learn transformer."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted


class FormulaDesign(TransformerMixin, BaseEstimator):
    """Columns of a table by a formula, such as "age + C(region) + log(income)", for any estimator after it.

    Formulas are those of the package formulaic, which `pip install lapwing[formula]` brings. The right-hand side
    alone is given; a column of ones is left to the intercept of the estimator. Levels of categories are those of `fit`.

    Parameters
    ----------
    formula : str
        The right-hand side of a formula.

    Raises
    ------
    ImportError
        If formulaic is not installed.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.pipeline import make_pipeline
    >>> from lapwing.linear import BayesianPoissonRegressor
    >>> table = pd.DataFrame({"age": [20.0, 30.0, 40.0, 50.0] * 5, "sex": ["f", "m"] * 10})
    >>> model = make_pipeline(FormulaDesign("age + C(sex)"), BayesianPoissonRegressor())
    >>> fitted = model.fit(table, [0, 1, 1, 2] * 5)  # doctest: +SKIP
    >>> fitted[-1].summary().index.tolist()  # doctest: +SKIP
    ['intercept', 'age', 'C(sex)[T.m]']
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {"formula": [str]}

    def __init__(self, formula: str) -> None:
        self.formula = formula

    def fit(self, X: Any, y: Any = None) -> FormulaDesign:  # noqa: ARG002
        """Learn the levels of categories.

        Parameters
        ----------
        X : DataFrame
            The table.
        y : ignored
            For pipelines.

        Returns
        -------
        FormulaDesign
            This transformer.

        Raises
        ------
        ImportError
            If formulaic is not installed.
        ValueError
            If the formula has a left-hand side.
        """
        if find_spec("formulaic") is None:
            raise ImportError("formulas need the package formulaic: pip install lapwing[formula]")
        if "~" in self.formula:
            raise ValueError(f"formula is {self.formula!r}, expected its right-hand side alone, without ~")
        matrix = import_module("formulaic").model_matrix(self.formula, X)
        self.spec_ = matrix.model_spec
        self.feature_names_out_ = np.array([name for name in matrix.columns if name != "Intercept"], dtype=object)
        return self

    def transform(self, X: Any) -> Any:
        """The columns of the formula.

        Parameters
        ----------
        X : DataFrame
            A table with the columns that the formula names.

        Returns
        -------
        DataFrame
            One row for each of X.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        matrix = self.spec_.get_model_matrix(X, na_action="raise")
        return import_module("pandas").DataFrame(matrix)[list(self.feature_names_out_)].astype(float)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:  # noqa: ARG002
        """The names of the columns that `transform` makes.

        Parameters
        ----------
        input_features : ignored
            For pipelines.

        Returns
        -------
        array
            Of str.

        Raises
        ------
        NotFittedError
            Before `fit`.
        """
        check_is_fitted(self)
        return self.feature_names_out_
