"""What evaluations and matches count of the rows of episodes, and the exact NashConv of a policy."""

import base64
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.config import files, resolve
from rljax.data import raw_bytes, tokenizers
from rljax.models.scores import scoring
from rljax.run import programs
from rljax.run.evaluation import episodes, evaluate, loading, trials
from rljax.run.games import matches, nashconv, tournament
from rljax.run.records import checkpoints
from rljax.run.reports import evaluations
from rljax.sampling import players
from tests.support import tiny

ONE = jax.devices()[:1]
BYTES = raw_bytes.Bytes()
WRONG, CORRECT = int(types.Outcome.WRONG), int(types.Outcome.CORRECT)


def rows(texts, *, seat, outcome, paid, before, turn=None, valid=None, finish=None, wrote=None):
    """Return rows of these texts; ``paid`` is on the last token that the seat wrote, ``wrote`` marks what it wrote."""
    count, width = len(texts), 8
    token, used = np.zeros((count, width), np.int32), np.zeros((count, width), np.float32)
    for i, text in enumerate(texts):
        ids = BYTES.encode(text)
        token[i, : len(ids)], used[i, : len(ids)] = ids, 1
    mask = used if wrote is None else used * np.array([[c == "x" for c in row.ljust(width, ".")] for row in wrote])
    token_reward = np.zeros((count, width), np.float32)
    for i in np.flatnonzero(mask.any(axis=1)):
        token_reward[i, np.flatnonzero(mask[i])[-1]] = paid[i]
    whole = np.zeros((count, width), np.int32) if turn is None else np.array(turn, np.int32)
    prompt = np.tile(np.array(BYTES.encode("ab"), np.int32), (count, 1))
    return types.Rollout(
        mask=mask,
        reward=np.array(before, np.float32),
        group=np.array([4] * count),
        index=np.array([4] * count),
        context=types.Context(prompt, np.ones_like(prompt, np.float32)),
        action=types.Action(token, length=used.sum(axis=1).astype(int)),
        turn=whole,
        token_reward=token_reward,
        outcome=np.array(outcome),
        valid=np.ones(count) if valid is None else np.array(valid, float),
        agent=np.array(seat),
        finish=np.full(count, int(types.Finish.STOP)) if finish is None else np.array(finish),
        parts={"n": np.arange(count, dtype=float)},
    )


def chapters():
    """Return two episodes of three turns by seats 0, 1, 0; the second one ends after its first turn."""
    return trials.Trials(
        rows(
            ["a", "bb", "c", "dd", "", ""],
            seat=[0, 1, 0, 0, 1, 1],
            outcome=[CORRECT, WRONG, CORRECT, WRONG, CORRECT, CORRECT],
            paid=[1.0, 2.0, 3.0, 4.0, 0, 0],
            before=[0.5, 0.0, 0.5, 0.0, 0.0, 0.0],  # paid to seat 0 before it wrote: on both of its rows
            turn=[[k] * 8 for k in (0, 1, 2) * 2],
            valid=[1, 1, 1, 1, 0, 0],
        ),
        3,
        True,
    )


def test_chapters_of_an_episode_are_counted_by_seat_and_once():
    played = chapters()
    assert played.outcome().tolist() == [CORRECT, WRONG] and played.length().tolist() == [4, 2]
    assert played.reward().tolist() == [1.5, 2.0, 3.0, 4.0, 0.0, 0.0]
    out = episodes.statistics(played.counted(), [1, 2], seat=0)
    assert out["episodes"] == 2 and out["success"][0] == 0.5 and out["turns"] == 2.0 and out["invalid"] == 0
    assert out["reward"] == (4.5 + 4.0) / 2 and out["by_seat"]["1"]["reward"] == 2.0
    assert out["pass_at_k"]["2"][0] == 1 and set(out["by_turns"]) == {"1", "3"}
    assert [len(played.described(e, BYTES.decode)) for e in (0, 1)] == [3, 1]


def test_conversations_count_turns_of_all_seats_and_failed_worlds_as_crashed():
    # seat 0 writes "a", is told "1", writes "b"; seat 1 is told "2" and writes "c". The second episode has failed.
    turn = [[0, 1, 1, *[0] * 5], [0, 0, *[0] * 6]] * 2
    made = rows(
        ["a1b", "2c"] * 2,
        seat=[0, 1] * 2,
        outcome=[CORRECT, WRONG] * 2,
        paid=[1.0, -1.0, 5.0, -5.0],
        before=[0.0] * 4,
        turn=turn,
        valid=[1, 1, 0, 0],
        finish=[int(types.Finish.LENGTH)] * 4,
        wrote=["x.x", ".x"] * 2,
    )
    played = trials.Trials(made, 2, False)
    assert played.outcome().tolist() == [CORRECT, int(types.Outcome.CRASHED)] and played.length().tolist() == [3, 3]
    out = json.loads(json.dumps(episodes.statistics(played.counted(), [1], seat=0)))
    assert out["turns"] == 3 and out["invalid"] == 0.5 and out["truncated"] == 1 and out["success"][0] == 0.5
    assert out["by_seat"]["0"]["reward"] == 1 and out["by_seat"]["1"]["success"][0] == 0
    said = played.described(0, BYTES.decode)
    assert said[0] == {
        "seat": 0,
        "prompt": "ab",
        "turns": [{"by": "policy", "text": "a"}, {"by": "world", "text": "1"}, {"by": "policy", "text": "b"}],
    }
    one = tournament.results(played, np.array([1, 0]))  # the first player has seat 1, and loses; the other game failed
    assert one.score.tolist() == [0.0] and one.seat.tolist() == [1] and one.truncated.tolist() == [True]


def test_games_are_counted_by_who_moved_first():
    # three games of domain 0, won, drawn and lost; of domain 1 a lost one, and one whose world failed
    number, (won, lost) = np.arange(5), (CORRECT, WRONG)
    outcome, reward = np.array([won, lost, lost, lost, won]), np.array([1.0, 0.0, -1.0, -1.0, 1.0])
    played = episodes.Rows(
        *(number, number, number * 0, outcome, reward, number * 0 + 1, np.array([1, 1, 1, 1, 0]), number < 0),
        parts={"drawn": np.array([0.0, 1.0, 0.0, 0.0, 0.0])},
        domain=np.array([0, 0, 0, 1, 1]),
    )
    out = episodes.statistics(played, [1], seat=0, domains=("moves_first", "moves_second"))
    first, second = out["by_domain"]["moves_first"], out["by_domain"]["moves_second"]
    assert (first["episodes"], second["episodes"]) == (3, 1) and (first["reward"], second["reward"]) == (0.0, -1.0)
    text = dict(evaluations.lines(out))
    assert text["won / drawn / lost, %"] == "25.0 / 25.0 / 50.0"
    assert text["moves_first: won / drawn / lost, %"] == "33.3 / 33.3 / 33.3"
    assert text["moves_second: won / drawn / lost, %"] == "0.0 / 0.0 / 100.0"
    shown = evaluations.by_group(out, "")
    columns, cells = shown.columns, shown.rows
    assert columns[2] == "won / drawn / lost, %" and [row[0] for row in cells] == ["moves_first", "moves_second"]
    assert episodes.statistics(played, [1], seat=0)["by_domain"] == {}


RUNS = {  # runs whose algorithm or players need what a game against the world, or a task of one turn, lacks
    "agents": {"algorithm": "spiral()", "world__players": ("policy", "snapshot")},
    "domains": {
        "algorithm": "grpo()",
        "seam__source": "sec(candidates=64)",
        "task": "mixture(guess(), guess(numbers=9))",
    },
    "critic": {"algorithm": "ppo()", "learner__minibatches": 2, "sampler__compact": 1, "task": "guess()"},
}


@pytest.mark.full
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_evaluated_on_tasks_that_its_algorithm_could_not_train_on(name, tmp_path):
    pytest.importorskip("pgx")
    run = tiny.config(**{"tokenizer__kind": "bytes", "task": "game('tic_tac_toe')", **RUNS[name]})
    tokenizer = tokenizers.make("bytes", ())
    program = programs.build(run, tokenizer, ONE)
    params = program.policy.init(jax.random.key(3))
    zero = jnp.zeros(1)
    state = types.TrainState(zero, zero, {"policy": params}, (), (), None, {}, zero, zero)
    extras = {"config": json.loads(files.dumps(run)), "tokenizer": base64.b64encode(tokenizer.serialized).decode()}
    extras["step"] = 1
    with checkpoints.Checkpointer(tmp_path / "checkpoints") as saver:
        saver.save(1, state, extras)
    for task in ("game('tic_tac_toe', opponent='expert')", "game('kuhn_poker')", "countdown()"):
        other, restored, step = loading.load(str(tmp_path), task)
        assert step == 1 and tiny.equal(params, restored)
        assert other.setups[0].settings.task == task and other.setups[0].phase.modules == ("policy",)
        assert other.settings.sampler == program.settings.sampler


def test_a_seat_without_a_turn_counts_as_paid_nothing():
    one = tournament.results(chapters(), np.array([0, 0]))
    assert one.score.tolist() == [1.0, 1.0]
    drawn = trials.Trials(chapters().rows.replace(token_reward=None, reward=np.zeros(6)), 3, True)
    assert tournament.results(drawn, np.array([0, 1])).score.tolist() == [0.5, 0.5]


def test_players_have_every_seat_equally_often():
    for samples in (2, 4, 6):
        seats = players.seats_of(("policy", "snapshot"), 3 * samples, 2, samples)
        assert (np.sort(seats, axis=1) == [0, 1]).all()  # never one player in both seats
        assert (seats.reshape(3, samples, 2).mean(axis=1) == 0.5).all()  # for each problem
    fixed = players.seats_of(("policy", "judge", "policy"), 4, 3, 4, swap=False)
    assert (fixed == [0, 1, 0]).all()  # numbers of the distinct ones
    assert players.seats_of(("policy",), 4, 2, 4).max() == 0  # self-play: the policy has both


def test_a_tournament_rates_every_pair_and_says_who_had_which_seat():
    strength, rng = {"a": 0.0, "b": 1.0, "c": 2.0}, np.random.default_rng(0)

    def games(one, other, index, key):
        seat = np.arange(2 * index.size) % 2
        won = rng.random(seat.size) < 1 / (1 + np.exp(other - one))
        return tournament.Games(won * 1.0, seat, won & False)

    out = tournament.tournament(strength, games, np.arange(200), jax.random.key(0), resamples=20)
    assert [r["player"] for r in out["ratings"]] == ["c", "b", "a"] and [p["games"] for p in out["pairs"]] == [400] * 3
    assert [p["players"] for p in out["pairs"]] == [["a", "b"], ["a", "c"], ["b", "c"]]
    for pair in out["pairs"]:
        assert pair["score"] == pytest.approx((pair["in_seat_0"] + pair["in_seat_1"]) / 2)
    json.dumps(out, allow_nan=False)
    with pytest.raises(ValueError, match="expected at least two different checkpoints"):
        tournament.load(["runs/a"], "", ())
    with pytest.raises(ValueError, match="--games=3: must be an even number"):
        tournament.player(kuhn().setups[0], 3, "heldout")


# --- NashConv of a policy -------------------------------------------------------------------------------


def kuhn():
    pytest.importorskip("pgx")
    return tiny.program(tokenizer__kind="bytes", task="game('kuhn_poker')")


def test_nashconv_of_a_policy_of_equal_logits_is_that_of_enumeration():
    program = kuhn()
    params = jax.eval_shape(program.policy.init, jax.random.key(0))
    params = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
    chip, legal = nashconv.of_policy(program.setups[0], params)
    # a turn of n characters has probability V^-(n + 1): "bet" against "check"; "call" and "fold" are equally long
    v = float(program.tokenizer.vocabulary)
    bets = [not history or history == ("check",) for _, history in nashconv.INFORMATION]
    np.testing.assert_allclose(chip, np.where(bets, v**-4 / (v**-4 + v**-6), 0.5), rtol=1e-5)
    np.testing.assert_allclose(legal, np.where(bets, v**-4 + v**-6, 2 * v**-5), rtol=1e-4)
    pure = [np.array(c, float) for c in itertools.product([0, 1], repeat=6)]
    best = max(nashconv.value(np.concatenate([c, chip[6:]])) for c in pure)
    best += max(-nashconv.value(np.concatenate([chip[:6], c])) for c in pure)
    assert nashconv.report(chip, legal)["nashconv"] == pytest.approx(best, rel=1e-9)


@pytest.mark.full
def test_evaluations_and_matches_of_a_game_agree_with_its_rows():
    program = kuhn()
    step, params = program.steps[0], program.policy.init(jax.random.key(1))
    record = evaluate.evaluate(program, params, name="x", step=0, prompts=3, samples=4)
    world = record["world"]
    assert world["episodes"] == 12 and set(world["by_seat"]) == {"0", "1"}
    assert world["by_seat"]["0"]["reward"] == pytest.approx(-world["by_seat"]["1"]["reward"])  # chips sum to 0
    assert world["success"][0] == record["pass_at_k"]["1"][0] and world["nashconv"]["nashconv"] > 0
    for example in record["examples"]:
        assert [row["seat"] for row in example["rows"]] == [0, 1] and example["rows"][0]["turns"][0]["by"] == "policy"
    # against the world the same policy has one seat, and moves first in half of the problems
    task = "game('kuhn_poker', opponent='random')"
    other = programs.build(resolve.played(program.config, task), program.tokenizer, ONE, trains=False)
    world = evaluate.evaluate(other, params, name="x", step=0, prompts=4, samples=4)["world"]
    assert {name: part["episodes"] for name, part in world["by_domain"].items()} == {
        "moves_first": 8,
        "moves_second": 8,
    }
    assert world["reward"] == pytest.approx(np.mean([part["reward"] for part in world["by_domain"].values()]))
    # the strategy is that of the scores of the conversations that seats really have
    functions = matches.functions(step.setup.world)
    context = nashconv._context(step.setup.world, functions, 2, ("check", "bet"))
    assert BYTES.decode(context).count(">") == 2
    chip, _ = nashconv.of_policy(step.setup, params)
    logp, network = [], step.setup.networks["policy"]
    score = jax.jit(lambda moves: scoring.score(network, params, moves, types.Needs()).logp.sum())
    for move in ("fold", "call"):
        ids = nashconv._tokens(step.setup.world, move)
        token = jnp.asarray([[*context, *ids]])
        moves = types.Rollout(
            jnp.ones((1, len(ids))),
            jnp.zeros(1),
            jnp.zeros(1, jnp.int32),
            context=types.Context(token[:, : -len(ids)], jnp.ones((1, len(context)))),
            action=types.Action(token[:, -len(ids) :]),
        )
        logp.append(score(moves))
    number = nashconv.INFORMATION.index(("K", ("check", "bet")))
    np.testing.assert_allclose(chip[number], jax.nn.sigmoid(logp[1] - logp[0]), rtol=1e-4)
    games = tournament.player(step.setup, 4, "heldout")
    out = tournament.tournament(
        {"a": params, "b": program.policy.init(jax.random.key(2))}, games, np.arange(3), program.key
    )
    with pytest.raises(ValueError, match="is no world; a match needs a world of 2 seats"):
        tournament.player(tiny.program().setups[0], 2, "heldout")
    (pair,) = out["pairs"]
    assert pair["games"] == 12 and pair["score"] == (pair["in_seat_0"] + pair["in_seat_1"]) / 2
