"""Mixtures of domains: the surrogate is exact on quadratics, and a search trains on its maximum."""

import itertools
import json
import re

import numpy as np
import pytest

from rljax.run.members import mixtures
from tests.support import tiny


def test_the_surrogate_recovers_every_quadratic():
    random = np.random.default_rng(0)
    for domains in (2, 3, 5):
        a, b, c = random.normal(size=(domains, domains)), random.normal(size=domains), random.normal()
        given, others = mixtures.design(domains), random.dirichlet(np.ones(domains), 20)
        scores = [np.einsum("mi,ij,mj->m", w, a, w) + w @ b + c for w in (np.array(given), others)]
        coefficients = mixtures.fit(given, scores[0])
        np.testing.assert_allclose(mixtures.features(others) @ coefficients, scores[1], atol=1e-10)
        with pytest.raises(ValueError, match=f"{domains} mixtures determine {domains} of"):
            mixtures.fit(given[:domains], scores[0][:domains])


def test_all_mixtures_of_a_resolution():
    for domains, parts in ((1, 3), (2, 4), (3, 5)):
        every = {
            tuple(n / parts for n in numbers)
            for numbers in itertools.product(range(parts + 1), repeat=domains)
            if sum(numbers) == parts
        }
        given = mixtures.simplex(domains, parts)
        assert len(given) == len(every) and {*given} == every
    for domains, parts in ((12, 20), (2, 0), (0, 2)):
        with pytest.raises(ValueError, match="expected 1 to 1000000"):
            mixtures.simplex(domains, parts)


def test_weights_that_are_no_mixture_are_refused():
    with pytest.raises(ValueError, match="expected mixtures, such as"):
        mixtures.search(tiny.config(), [], "unused")
    for weights in ([(1, 0), (0, 0)], [(1, 0), (1, -1)], [(1, 0), (1,)]):
        with pytest.raises(ValueError, match="expected 2 numbers from 0 on, not all 0"):
            mixtures.search(tiny.config(), weights, "unused")


@pytest.mark.full
def test_a_search_trains_on_the_mixture_of_the_largest_value(tmp_path):
    config = tiny.config(
        task="arithmetic(digits=(1, 2), working=False, noise=0.3)", mesh__data=1, seam__penalty="+ entropy(0.1)"
    )

    def score(result):
        easy = float(re.search(r"weights=\(([\d.]+)", str(result.program.config.seam.source)).group(1))
        return 1.0 - (easy - 0.3) ** 2

    def searched():
        return mixtures.search(config, [(1, 0), (2, 2), (0, 1)], tmp_path, score=score, progress=False)

    result = searched()
    assert result.weights == (0.3, 0.7) and result.predicted == pytest.approx(1.0)
    np.testing.assert_allclose(result.errors, 0.0, atol=1e-12)
    record = json.loads((tmp_path / "mixtures.json").read_text())
    assert record["chosen"] == {
        "weights": [0.3, 0.7],
        "predicted": result.predicted,
        "score": score(result.best.result),
    }
    assert not tiny.equal(result.best.result.state.params, result.runs[0].result.state.params)
    again = searched()  # nothing is left to run
    assert tiny.equal(again.best.result.state.params, result.best.result.state.params)
