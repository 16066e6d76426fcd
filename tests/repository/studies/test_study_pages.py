"""The pages of studies from given values, and what is refused before a study runs."""

import dataclasses
import json

import numpy as np
import pytest

from experiments.agents import agents
from experiments.curriculum import mixtures, population
from experiments.denoising import study as denoising
from experiments.distillation import teacher
from experiments.hints import hints
from experiments.offline import compare
from experiments.ppo import pass_at_1
from experiments.reward_model import pairs
from experiments.worlds import seeds
from rljax.config import resolve


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


def test_the_page_of_mixtures_compares_arms_by_seed_and_draws_the_surrogate(tmp_path):
    weights = [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5)]
    ends = {"equal parts": 0.5, "best that ran": 0.6, "chosen": 0.7}
    results = [
        {
            "runs": [{"weights": w, "score": 0.5 + w[2] / 4 - w[0] * w[1]} for w in weights],
            "predicted": 0.65 - shift,
            "base": [0.2] * 4,
            "arms": {name: {"weights": (0.5, 0.3, 0.2), "ended": [x + shift] * 4} for name, x in ends.items()},
        }
        for shift in (0.0, 0.1)
    ]
    text = mixtures.table(results)
    rows = cells(text.partition("\n\n")[0])
    assert rows["chosen"][0] == "0.50, 0.30, 0.20" and rows["chosen"][1].startswith("75.0")
    assert rows["chosen minus equal parts"][1].startswith("20.0")
    assert rows["chosen minus best that ran"][1].startswith("10.0")
    assert "off by 15.0 points" in text  # 0.65 and 0.7, 0.55 and 0.8
    mixtures.draw(results, tmp_path / "mixtures.png")
    assert (tmp_path / "mixtures.png").stat().st_size


def test_the_page_of_populations_compares_the_members_that_score_best_on_other_prompts(tmp_path):
    results = [
        {
            "base": 0.1,
            "rates": [population.RATES, population.RATES],
            population.POPULATION: [(0.2, 0.9), (0.8, 0.6 + shift), *[(-1.0, 0.0)] * 4],
            population.FIXED: [(0.3, 0.4 + shift), *[(0.1, 0.2)] * 5],
        }
        for shift in (0.0, 0.1)
    ]
    rows = cells(population.table(results).replace("\n\n", "\n"))
    assert rows["clone, where all start"] == ["10.0", ""]
    assert [x.split()[0] for x in rows[population.POPULATION]] == ["65.0", "25.8"]
    assert [x.split()[0] for x in rows[population.FIXED]] == ["45.0", "24.2"]
    differ = [rows[name][0].split()[0] for name in rows if "above" in name]
    assert differ == ["20.0", "1.7"]
    population.draw(results, tmp_path / "population.png")
    assert (tmp_path / "population.png").stat().st_size


@pytest.mark.parametrize("name", agents.CONTRASTS)
def test_the_arms_of_a_contrast_of_agents_resolve(name):
    contrast = agents.CONTRASTS[name]
    phases = resolve.phases(agents.config(contrast, seeds.QUICK))
    assert [phase.task.name for phase in phases[1:2]] == ["arithmetic"]  # where the policy is measured alone
    for phase, arm in zip(phases[2:], contrast.arms.values(), strict=True):
        assert phase.settings.world.players == arm.players
        assert ("second" in phase.trained) == bool(arm.trained)
    assert {claim.first for claim in contrast.claims} <= {*contrast.arms}
    assert {claim.second for claim in contrast.claims} <= {"clone", *contrast.arms}


def test_the_page_of_agents_decides_claims_by_the_curve_its_end_or_the_verdicts():
    contrast = agents.Contrast(
        agents.EXAMINE,
        {"one": agents.ALONE, "two": agents.JUDGED},
        (
            agents.arms.Claim("higher", "two", "one", "pass@1"),
            agents.arms.Claim("lower at the end", "two", "one", "end", below=True),
            agents.arms.Claim("truer", "two", "clone", "verdicts"),
        ),
    )
    runs = [
        {
            "clone": {"curve": [(0, 0.2)], "verdicts": 0.5},
            "one": {"curve": [(0, 0.2), (10, 0.3 + x), (20, 0.5)]},
            "two": {"curve": [(0, 0.2), (10, 0.5 + x), (20, 0.5 - y)], "verdicts": 0.75 + y},
        }
        for x, y in ((0.0, 0.01), (0.1, 0.0), (0.0, 0.02))
    ]
    text = agents.table(contrast, runs)
    rows = cells(text.replace("\n\n", "\n"))
    # the first differs by (0.2 - y) / 2: 9.5, 10, 9, mean 9.5, deviation 0.5, half width 4.303 * 0.5 / sqrt(3) = 1.24
    assert rows["higher (primary)"] == ["9.5 [8.3, 10.7]", "holds"]
    assert rows["lower at the end"][0].startswith("-1.0") and rows["lower at the end"][1] == "inconclusive"
    assert rows["truer"][0].startswith("26.0") and rows["truer"][1] == "holds"
    assert rows["one"][2] == "" and rows["two"][2].startswith("76.0") and rows["clone"][1].startswith("20.0")


def test_the_page_of_ppo_pairs_the_arms_by_seed_and_keeps_the_seeds_that_are_done(tmp_path):
    ends = [(0.90, 0.92), (0.80, 0.78), (0.85, 0.88)]
    seeds = [{"GRPO": [[0, 0.4], [8, grpo]], "PPO": [[0, 0.4], [8, ppo]]} for grpo, ppo in ends]
    size = dataclasses.replace(pass_at_1.QUICK, seeds=(0, 1, 2))
    stored = {"size": {k: v for k, v in dataclasses.asdict(size).items() if k != "seeds"}}
    file = tmp_path / "pass_at_1.json"
    file.write_text(json.dumps(stored | {"seeds": {str(n): seed for n, seed in enumerate(seeds)}}))
    rows = cells(pass_at_1.table(pass_at_1.run(size, file)))  # nothing is left to run
    assert rows["base"] == ["40.0", ""] and rows["GRPO"][0].startswith("85.0")
    # differences 2, -2, 3: mean 1, deviation 2.646; t_{0.975, 2} = 4.303; half width 4.303 * 2.646 / sqrt(3) = 6.57
    assert rows["PPO"][1] == "1.0 [-5.6, 7.6]"
    with pytest.raises(ValueError, match="has curves of the size"):
        pass_at_1.run(dataclasses.replace(size, rows=16), file)


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


def test_the_page_of_the_distillation_study_counts_steps_between_measurements():
    def arm(accuracy, kl):
        return teacher.Arm([(0, 0.2), (10, 0.4), (20, accuracy)], [(0, 0.5), (10, kl), (20, 2 * kl)])

    arms = {"GRPO": [arm(0.63, 0.0)] * 2, "sampled token": [arm(0.5, 0.04)] * 2, "exact": [arm(0.8, 0.01)] * 2}
    page = teacher.table(arms, teacher.Size(seeds=2, clone=1, steps=20))
    rows = cells(page.partition("\n\n")[0])
    # within 3 points of 63 %: 0.4 + 0.023 s = 0.6, s = 8.7; 0.4 + 0.04 s = 0.6, s = 5
    assert rows["GRPO"] == ["63.0", "", "19", ""] and rows["base"][:2] == ["20.0", "-43.0"]
    assert rows["exact"] == ["80.0", "17.0", "15", f"{15 / (10 + 0.2 / 0.023):.2f}"]
    assert rows["sampled token"][2].startswith(">= 20")
    assert cells(page.partition("\n\n")[2])["exact"] == ["0.5000", "0.0100", "0.0200"]


def test_the_page_of_denoising_has_the_last_points_and_the_best_trade_at_their_divergence():
    def end(reward, kl):
        return [
            {"step": 20, "reward": 0.0, "solved": 0.0, "kl": 9.0},
            {"step": 40, "reward": reward, "solved": 0.25, "kl": kl},
        ]

    best = [{"beta": b, "reward": r, "solved": 0.5, "kl": k} for b, r, k in ((0.1, 1.2, 3.0), (1.0, 0.6, 1.0))]
    base = {"reward": 0.1, "solved": 0.125, "kl": 0.0}
    runs = {"x": [end(0.5, 1.0), end(0.7, 3.0)], "sparse: y": [end(0.5, 2.0)]}
    rows = cells(denoising.table({"base": base, "best": best, "runs": runs}))
    assert rows["x"] == ["0.60 ± 0.14", "0.90", "25.0 ± 0.0", "2.00 ± 1.41"]  # halfway between 0.6 and 1.2
    assert rows["base"][0] == "0.10 ± 0.00" and rows["sparse: y"][1] == ""
