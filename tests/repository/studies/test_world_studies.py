"""Studies of worlds run in their quick mode, and what they compute themselves is what the algorithms use."""

import functools

import jax
import numpy as np
import pytest

from experiments.worlds import critics, maze, seeds, tamper, tic_tac_toe
from rljax.config import resolve

pytestmark = pytest.mark.full


@functools.cache
def built():
    """Return the steps of cloning and of an arm of the study of tic-tac-toe."""
    pytest.importorskip("pgx")
    c = tic_tac_toe.config(seeds.QUICK)
    assert [phase.name for phase in resolve.phases(c)] == ["clone", *tic_tac_toe.ARMS, *tic_tac_toe.AGAINST]
    c.phases = ("clone", "role")
    return seeds.build(c)


def test_maze(tmp_path, capsys):
    maze.main({"3": seeds.QUICK}, tmp_path)
    assert (tmp_path / "maze_3.png").stat().st_size
    assert "| cloning + RL minus RL |" in capsys.readouterr().out


def test_the_page_of_digirl_compares_the_arms_of_each_seed(tmp_path):
    first, second = [[(0, 0.2), (8, 0.5)], [(0, 0.1), (8, 0.4)]], [[(0, 0.2), (8, 0.7)], [(0, 0.1), (8, 0.6)]]
    curves = {"filtered_cloning": first, "digirl": second}
    rows = dict(line.strip("| ").split(" | ") for line in critics.table(curves).splitlines()[2:])
    assert rows["clone, where both start"].startswith("15.0") and rows["`digirl()`"].startswith("65.0")
    assert rows["`digirl()` minus `filtered_cloning()`"].startswith("20.0")
    seeds.draw(curves, "maze", tmp_path / "digirl.png")
    assert (tmp_path / "digirl.png").stat().st_size


def test_the_page_of_tampering_compares_the_ends_of_the_arms():
    def runs(free, locked):
        at = [{"right": x, "paid": 0.9, "edited": 0.5, "right if locked": 0.3} for x in (0.4, free, locked)]
        return {name: {"0": at[0], "1": at[1 + (name == "locked")]} for name in tamper.ARMS}

    lines = tamper.table([runs(0.1, 0.5), runs(0.15, 0.56), runs(0.2, 0.59)], tamper.QUICK).splitlines()
    assert "(primary) | -40.0 [" in lines[2] and lines[2].endswith("| holds |")
    assert "| -25.0 [" in lines[3] and "| 0.0 |" in lines[6]
    ends = {line.split(" | ")[0]: line.split(" | ")[1] for line in lines[9:]}
    assert [ends[f"| {name}"].partition(" ")[0] for name in ("clone", "editable", "locked")] == ["40.0", "15.0", "55.0"]


def test_the_page_of_tic_tac_toe_has_both_opponents_and_variances(tmp_path):
    pytest.importorskip("pgx")
    values = np.array([[0.5, 0.75, 0.25, 1.0, 2.0, 1.0], [0.5, 0.75, 0.25, 1.0, 4.0, 2.0]])
    lines = tic_tac_toe.table({"clone": values, "one": values, "role": values - 0.25}).splitlines()
    assert lines[0].count("|") == 6 and any("role minus one" in line and "-25" in line for line in lines)
    assert lines[-2].startswith("| one | 50")
    tic_tac_toe.draw({"clone": values, "one": values, "role": values}, tmp_path / "tic_tac_toe.png")
    assert (tmp_path / "tic_tac_toe.png").stat().st_size


def test_baselines_of_the_study_are_those_of_the_algorithm():
    step = built()["role"]
    start = seeds.begin(built()["clone"], None, 0)
    state, variances, role = tic_tac_toe.self_play(step, seeds.begin(step, start, 0), 0, 2)
    (memory,) = jax.tree.leaves(state.algorithm)
    np.testing.assert_allclose(memory, role, rtol=1e-5, atol=1e-7)
    assert np.any(role != 0) and np.all(variances >= 0)


def test_a_zero_sum_game_pays_both_seats():
    step = built()["role"]
    state = seeds.begin(step, seeds.begin(built()["clone"], None, 0), 0)
    paid, has = tic_tac_toe.totals(step.rollout(state, seeds.key(0)), 2)
    both = has.all(axis=1)
    np.testing.assert_array_equal(paid[both].sum(axis=1), 0)
    assert has[:, 0].all() and np.all(abs(paid) <= 1)
    single, role = (tic_tac_toe.advantages(paid, has, np.array(b)) for b in ([0.25], [0.25, -0.25]))
    np.testing.assert_allclose(np.sort(single), np.sort(paid[has] - 0.25))
    np.testing.assert_allclose(single.sum() - role.sum(), -0.5 * has[:, 1].sum())
