"""Calls that a worker runs at once: they overlap, and what hangs, blocks or dies costs no other its answer."""

import functools

import numpy as np
import pytest

from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import judging
from rljax.environments.worlds.host import episodes
from tests.support import talking


def played(made, turns, timeout=20.0, workers=1):
    """Return what the turns of episodes were told, by episode and turn."""
    with episodes.Episodes(made, VerifierConfig(workers=workers, timeout=timeout, concurrency=8)) as game:
        game.begin(dict.fromkeys(turns, 0))
        for episode, texts in turns.items():
            game.submit(episode, 0, texts[0])
        told = {}
        while game.waiting:
            for (episode, number), answer in game.ready(5.0).items():
                told[episode, number] = answer
                if not answer.over:
                    game.submit(episode, number + 1, turns[episode][number + 1])
        game.end(turns)
        return told


@pytest.mark.parametrize("world", [talking.Meeting, talking.AwaitedMeeting])
def test_turns_of_a_worker_overlap(world):
    told = played(world, {n: [str(n)] for n in range(4)})
    assert {episode: answer.text for (episode, _), answer in told.items()} == {n: str(n) for n in range(4)}


def test_rewards_of_a_worker_overlap_and_each_reaches_its_row():
    with judging.Verifiers(talking.meet, VerifierConfig(workers=1, concurrency=4, timeout=20)) as verifiers:
        scored = verifiers.submit([str(n) for n in range(8)], [None] * 8).result()
    np.testing.assert_array_equal(scored.reward, np.arange(8))


def test_a_call_that_hangs_ends_its_own_episode_only():
    turns = {0: ["hang"]} | {n: ["doze"] * 4 for n in range(1, 6)}
    told = played(functools.partial(talking.Echo, 4), turns, timeout=0.8)
    assert told[0, 0].outcome == "timed_out" and "step(): no answer after 0.8 s" in told[0, 0].error
    assert all(told[n, 3].done and told[n, 3].valid and told[n, 3].reward == 0.5 for n in range(1, 6))


@pytest.mark.full
def test_coroutines_that_block_end_or_cancel_what_they_share_fail_alone():
    names = ["block", "die", "leave", "cancel", "fine", "good", "well"]
    told = played(talking.Rough, {n: [name] for n, name in enumerate(names)}, timeout=0.8)
    assert [told[n, 0].outcome for n in range(4)] == ["timed_out", "crashed", "crashed", "crashed"]
    for n, words in enumerate(["no answer after 0.8 s", "exited with status 3", "SystemExit: 3", "CancelledError"]):
        assert words in told[n, 0].error
    assert [told[n, 0].text.split()[0] for n in range(4, 7)] == ["fine", "good", "well"]


def test_tasks_that_an_episode_leaves_end_with_it():
    with episodes.Episodes(talking.Rough, VerifierConfig(workers=1, timeout=20, concurrency=2)) as game:
        for episode, left in enumerate(["0", "1", "2"]):
            game.begin({episode: 0})
            game.submit(episode, 0, "go on")
            assert game.ready(5.0)[episode, 0].text == f"go on {left}"
            game.end([episode])
