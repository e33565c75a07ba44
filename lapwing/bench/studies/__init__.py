"""The tasks of `lapwing bench`."""

from lapwing.bench.studies import images, toy, uci
from lapwing.bench.studies.study import Study

STUDIES: dict[str, Study] = {
    study.name: study for study in (toy.STUDY, uci.STANDARD, uci.GAP, images.FASHION, images.OOD, images.ROTATED)
}

__all__ = ["STUDIES", "Study"]
