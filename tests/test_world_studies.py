"""Studies of worlds run in their quick mode, and what they compute themselves is what the algorithms use."""

import jax
import numpy as np
import pytest

from experiments.worlds import digirl, maze, seeds, tic_tac_toe

pytestmark = pytest.mark.full


def test_maze(tmp_path, capsys):
    maze.main({"3": seeds.QUICK}, tmp_path)
    assert (tmp_path / "maze_3.png").stat().st_size
    assert "| cloning + RL minus RL |" in capsys.readouterr().out


def test_digirl_starts_both_arms_from_one_clone(tmp_path):
    curves = digirl.run(seeds.QUICK)
    first = [[curve[0] for curve in arm] for arm in curves.values()]
    assert first[0] == first[1]
    seeds.draw(curves, "maze", tmp_path / "digirl.png")
    assert "nan" not in digirl.table(curves)


def test_tic_tac_toe(tmp_path, capsys):
    pytest.importorskip("pgx")
    tic_tac_toe.main(seeds.QUICK, tmp_path)
    assert (tmp_path / "tic_tac_toe.png").stat().st_size
    assert "role minus one" in capsys.readouterr().out


def test_baselines_of_the_study_are_those_of_the_algorithm():
    pytest.importorskip("pgx")
    step = tic_tac_toe.build(seeds.QUICK)["role"]
    start = seeds.begin(tic_tac_toe.build(seeds.QUICK)["clone"], None, 0)
    state, variances, role = tic_tac_toe.self_play(step, seeds.begin(step, start, 0), 0, 2)
    (memory,) = jax.tree.leaves(state.algorithm)
    np.testing.assert_allclose(memory, role, rtol=1e-5, atol=1e-7)
    assert np.any(role != 0) and np.all(variances >= 0)


def test_a_zero_sum_game_pays_both_seats():
    pytest.importorskip("pgx")
    step = tic_tac_toe.build(seeds.QUICK)["role"]
    state = seeds.begin(step, seeds.begin(tic_tac_toe.build(seeds.QUICK)["clone"], None, 0), 0)
    paid, has = tic_tac_toe.totals(step.rollout(state, seeds.key(0)), 2)
    both = has.all(axis=1)
    np.testing.assert_array_equal(paid[both].sum(axis=1), 0)
    assert has[:, 0].all() and np.all(abs(paid) <= 1)
    single, role = (tic_tac_toe.advantages(paid, has, np.array(b)) for b in ([0.25], [0.25, -0.25]))
    np.testing.assert_allclose(np.sort(single), np.sort(paid[has] - 0.25))
    np.testing.assert_allclose(single.sum() - role.sum(), -0.5 * has[:, 1].sum())
