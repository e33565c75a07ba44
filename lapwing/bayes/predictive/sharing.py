"""A prediction shared among the processes of one job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from lapwing.bayes.predictive.prediction import Prediction
from lapwing.linalg.operators import LinearOperator, OverData
from lapwing.runtime.ranks import together


def predicted(features: LinearOperator, inputs: Any, outputs: int, predict: Callable[[Any], Prediction]) -> Prediction:
    """A prediction at all inputs on every rank, of which each makes a share."""
    with together(True) as ranks:
        count = features.shape[0] // (features.datum_rows if isinstance(features, OverData) else outputs)
        if ranks is None or count < ranks.size:
            return predict(inputs)
        cuts = [ranks.cut(count, rank) for rank in range(ranks.size)]
        heights, (first, last) = [stop - start for start, stop in cuts], cuts[ranks.rank]
        ranks.check_same("inputs to predict at", repr(features.shape).encode())
        own = features.inputs_between(first, last) if isinstance(features, OverData) else inputs[first:last]
        found = ranks.computed("prediction", lambda: predict(own))

        def gathered(part: Tensor, axis: int) -> Tensor:
            return ranks.stacked("prediction", heights, lambda: part.movedim(axis, 0)).movedim(0, axis)

        return found.map_tensors(lambda part: gathered(part, 0), lambda part: gathered(part, 1))
