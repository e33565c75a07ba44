import pytest
import torch

from lapwing.bayes.noise import DATA, PRIOR, Noise


def test_blocks_of_the_table_do_not_depend_on_batching():
    whole = Noise(3).rows(0, 50, 7)
    pieces = [Noise(3).rows(start, min(start + 13, 50), 7) for start in range(0, 50, 13)]
    assert torch.equal(torch.cat(pieces), whole)
    assert torch.equal(Noise(3).rows(5, 9, 2, first_column=4), whole[5:9, 4:6])


def test_entries_are_independent_standard_normals():
    n = 40_000
    table = torch.cat(
        [Noise(0, PRIOR).rows(0, n, 3), Noise(0, DATA).rows(0, n, 3), Noise(1, PRIOR).rows(0, n, 2)], dim=1
    )
    lagged = torch.cat([table[:-1], table[1:]], dim=1)  # neighbours in a column, too
    moments = lagged.mT @ lagged / (n - 1)
    assert ((moments - torch.eye(16)).abs() <= 5 * (1 + torch.eye(16)).sqrt() / n**0.5).all()
    assert (table.mean(0).abs() <= 5 / n**0.5).all()
    assert ((table**4).mean(0) - 3).abs().max() <= 5 * (96 / n) ** 0.5  # var(x⁴) = 105 − 9


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_out_of_range_are_refused(seed):
    with pytest.raises(ValueError, match="seed is"):
        Noise(seed)
