"""The pages of studies from given values, and what is refused before a study runs."""

import numpy as np
import pytest

from experiments.hints import hints
from experiments.offline import compare
from experiments.reward_model import pairs


def cells(text):
    return {name: rest for name, *rest in ([x.strip() for x in line.split("|")[1:-1]] for line in text.splitlines())}


def test_the_page_of_hints_has_the_end_of_success_and_the_last_tenth_of_the_reward():
    success = {
        "GRPO": [[(0, 0.0), (20, 0.0)], [(0, 0.0), (20, 0.0)]],
        "x": [[(0, 0.0), (20, 0.5)], [(0, 0.0), (20, 0.3)]],
    }
    falling = [(n, 1.0 if n <= 18 else 0.25) for n in range(1, 21)]
    rows = cells(hints.table(success, {"GRPO": [[(1, 0.0)]] * 2, "x": [falling, falling]}))
    assert rows["base"] == ["0.0", ""] and rows["GRPO"] == ["0.0", "0.0"]
    assert rows["x"][1] == "25.0"
    # t_{0.975, 1} = 12.706; the half width is 12.706 * 0.1414 / sqrt(2) = 1.27, cut to [0, 1]
    assert rows["x"][0] == "40.0 [0.0, 100.0]"


def test_the_page_of_the_offline_study_compares_the_arms_of_each_seed():
    arms = {name: [[(0, 0.2), (8, 0.4)], [(0, 0.3), (8, 0.5)]] for name in compare.ARMS}
    arms["dpo"] = [[(0, 0.2), (8, 0.3)], [(0, 0.3), (8, 0.4)]]
    rows = cells(compare.table(arms))
    assert rows["base"][0].startswith("25.0") and rows["base"][1] == "" and rows["base"][2].startswith("-20.0")
    assert rows["grpo"][1].startswith("20.0") and rows["grpo"][2] == ""
    assert rows["dpo"][1].startswith("10.0") and rows["dpo"][2].startswith("-10.0")


def test_the_page_of_the_reward_model_has_the_last_step_beside_the_best():
    def seed(ranked, end):
        arms = {"KL 1": pairs.Arm([0, 20, 40], [0.3, 0.7, end], [-1.0, 1.0, 2.0], [0.0, 0.5, 0.5])}
        return pairs.Seed(ranked, 0.02, 100, arms)

    results = [seed(0.9, 0.6), seed(1.0, 0.6)]
    page = pairs.table(results)
    rows = cells("\n".join(page.splitlines()[2:]))
    assert page.startswith("held-out pairs ranked right: 95.0 [")
    assert [x.split()[0] for x in rows["base"] if x] == ["30.0", "-1.00", "0"]
    assert [x.split()[0] for x in rows["KL 1"]] == ["60.0", "30.0", "70.0", "2.00", "0.50"]


def test_a_pair_has_a_right_and_a_wrong_answer_and_none_is_made_up():
    reward = np.array([[1.0, 0.0, 0.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0, 0.0]])
    texts = [["2", "3", "", "02", "4"], ["5", "6", "7", "8", "9"]]
    assert compare.paired(["1+1=", "1+2="], texts, reward) == [
        {"prompt": "1+1=", "chosen": "2", "rejected": "3"},
        {"prompt": "1+1=", "chosen": "02", "rejected": "4"},
    ]
    with pytest.raises(compare.NoPairsError, match="none of 1 prompts has a right and a wrong answer"):
        compare.paired(["1+2="], texts[1:], reward[1:])
