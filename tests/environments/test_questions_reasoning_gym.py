"""Tasks over a user's rows: reasoning-gym."""

import numpy as np
import pytest

from rljax import types
from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import judging
from tests.environments.questions_cases import prompts, task


@pytest.fixture
def gym():
    """Skip without reasoning-gym, which is an extra."""
    return pytest.importorskip("reasoning_gym")


@pytest.mark.full
def test_problems_and_scores_are_those_of_reasoning_gym(gym):
    made = task("gym('leg_counting', max_animals=4, size=40, heldout=20, seed=3, tagged=False)")
    assert not set(prompts(made, "train")) & set(prompts(made, "heldout"))
    again = task("gym('leg_counting', max_animals=4, size=40, heldout=20, seed=3, tagged=False)")
    assert prompts(again, "train") == prompts(made, "train")
    direct = gym.create_dataset("leg_counting", max_animals=4, size=1)
    for split, i in (("train", 0), ("heldout", 7)):
        entry, answer = made.columns(i, split)["entry"], made.target(i, split)
        assert entry["question"].strip() == made.text(i, split) and entry["metadata"]["num_animals"] <= 4
        for text in (answer, f"It is {answer}.", f"{answer}0", "many", ""):
            score = made.reward(text, answer, entry=entry)
            assert score["reward"] == (direct.score_answer(text, entry) if text else 0)
            outcome = "correct" if text == answer else "wrong" if text else "unparseable"
            assert score["outcome"] == outcome
    fraction = made.reward(f"It is {answer}.", answer, entry=entry)
    assert 0 < fraction["reward"] < 1 and fraction["outcome"] == "wrong"


@pytest.mark.full
def test_several_generators_are_judged_in_worker_processes(gym):
    made = task(
        "gym({'leg_counting': {'weight': 3.0}, 'prime_factorization': {'max_value': 100000}}, size=200, heldout=10)"
    )
    entries = [made.columns(i, "train")["entry"] for i in range(made.size("train"))]
    share = np.mean([entry["metadata"]["source_dataset"] == "leg_counting" for entry in entries])
    assert abs(share - 0.75) < 4 * np.sqrt(0.75 * 0.25 / len(entries))  # 4 standard deviations
    rows = [i for name in ("leg_counting", "prime_factorization") for i in _first(entries, name)]
    texts = [f"so <answer>{made.target(i, 'train')}</answer>" for i in rows] + ["none", "<answer>two</answer>"]
    rows += [rows[0], rows[-1]]  # the scorer of factors raises ValueError for a text without numbers
    with judging.Verifiers(made.reward, VerifierConfig(workers=1, timeout=60)) as verifiers:
        given = [made.columns(i, "train") for i in rows]
        scored = verifiers.submit(texts, [made.target(i, "train") for i in rows], given).result()
    names = [types.Outcome(code).name for code in scored.outcome]
    assert scored.errors == [] and names == ["CORRECT"] * (len(rows) - 2) + ["UNPARSEABLE"] * 2


def _first(entries, name):
    return [i for i, entry in enumerate(entries) if entry["metadata"]["source_dataset"] == name][:2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("gym('leg_countin')", "no generator 'leg_countin'. Did you mean 'leg_counting'"),
        ("gym('leg_counting', max_animal=3)", "leg_counting: has no knob 'max_animal'. Did you mean 'max_animals'"),
        ("gym('leg_counting', max_animals='3')", "leg_counting: max_animals='3': must be a whole number"),
        ("gym('leg_counting', max_animals=2)", "gym: max_animals must be >= min_animals"),
        ("gym({'chain_sum': {'weight': -1}})", "the weight of 'chain_sum' is -1, not above 0"),
        ("gym({'chain_sum': {}}, min_terms=3)", "write knobs beside the name of their generator"),
    ],
)
@pytest.mark.full
def test_generators_and_knobs_are_checked(gym, call, words):
    with pytest.raises(ValueError, match=words):
        task(call)
