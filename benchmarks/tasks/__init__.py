"""The tasks of `python -m benchmarks`."""

from benchmarks.tasks import bandit, cifar, evidence_table, images, scaling, temperature, toy, uci
from benchmarks.tasks.study import Study

_ALL = (
    toy.STUDY,
    uci.STANDARD,
    uci.GAP,
    bandit.STUDY,
    images.FASHION,
    images.OOD,
    images.ROTATED,
    cifar.STUDY,
    evidence_table.STUDY,
    temperature.STUDY,
    scaling.STUDY,
)
STUDIES: dict[str, Study] = {study.name: study for study in _ALL}

__all__ = ["STUDIES", "Study"]
