"""Recipes on rows as worlds make them: replies in between, payments at turns, several rows and seats of an episode."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, environments, types
from rljax.algorithms import inputs, interpreter
from rljax.config import resolve
from rljax.data import tokenizers
from rljax.environments.worlds.supplies import shared, supplies
from rljax.language import parse
from rljax.transforms import PREDICATES, advantage, chain, prepare, reduce, reward, source, trajectories
from tests import tiny

KEY = jax.random.key(0)


def rows(mask, paid=None, **fields):
    """Return a rollout; fields are arrays of its fields."""
    mask = jnp.asarray(mask, jnp.float32)
    count = mask.shape[0]
    filled = {
        "reward": np.zeros(count, np.float32),
        "group": np.zeros(count, np.int32),
        "episode": np.arange(count, dtype=np.int32),
        "agent": np.zeros(count, np.int32),
        "domain": np.zeros(count, np.int32),
        "turn": np.zeros(mask.shape, np.int32),
        "valid": np.ones(count, np.float32),
        **fields,
    }
    nested = {name: filled.pop(name) for name in ("parts", "extra") if name in filled}
    rollout = types.Rollout(mask=mask, **{name: jnp.asarray(x) for name, x in filled.items()})
    rollout = rollout.replace(**{name: jax.tree.map(jnp.asarray, x) for name, x in nested.items()})
    return rollout if paid is None else rollout.replace(token_reward=jnp.asarray(paid, jnp.float32))


def run(rollout, *pieces):
    """Return the rollout after rollout transforms."""
    chained = chain(*pieces)
    return jax.jit(lambda r: chained.apply(r, chained.init(), KEY)[0])(rollout)  # faster than to compile each operation


def chapters(seed, episodes=4, turns=3, seats=2, width=5):
    """Return rows of episodes of 1 to ``turns`` turns, seats in turn; half of the episodes are of each group."""
    r = np.random.default_rng(seed)
    count = episodes * turns
    number, episode = np.arange(count) % turns, np.arange(count) // turns
    present = number < r.integers(1, turns + 1, episodes)[episode]
    mask = (r.random((count, width)) < 0.7) * present[:, None]
    mask[:, 1] = present
    value = r.random((count, width)).astype(np.float32)
    return rows(
        mask,
        np.where(mask > 0, r.integers(-3, 4, mask.shape), 99),
        group=episode * 2 // episodes,
        episode=episode + 7,
        agent=number % seats,
        turn=np.broadcast_to(number[:, None], mask.shape).copy(),
        valid=present.astype(np.float32),
        value=value,
    )


def trajectory_tokens(r):
    """Return {(episode, agent): its (row, position) in order}."""
    out = {}
    for i in range(r.mask.shape[0]):
        for t in range(r.mask.shape[1]):
            if r.valid[i] > 0 and r.mask[i, t] > 0:
                out.setdefault((int(r.episode[i]), int(r.agent[i])), []).append((i, t))
    return out


@pytest.mark.default_tier("0")
@pytest.mark.parametrize("seed", range(3))
def test_returns_and_estimates_run_over_the_rows_of_a_trajectory(seed):
    r = chapters(seed)
    paid, value = np.asarray(r.token_reward), np.asarray(r.value)
    gamma, lam = 0.9, 0.7
    returns, estimates, totals = (np.zeros(r.mask.shape) for _ in range(3))
    for places in trajectory_tokens(r).values():
        ahead = following = estimate = 0.0
        for i, t in reversed(places):
            ahead = paid[i, t] + gamma * ahead
            estimate = paid[i, t] + gamma * following - value[i, t] + gamma * lam * estimate
            following = value[i, t]
            returns[i, t], estimates[i, t] = ahead, estimate
            totals[i, t] = sum(paid[p] for p in places)
    np.testing.assert_allclose(run(r, advantage.returns(gamma)).advantage, returns, rtol=1e-5, atol=1e-5)
    both = run(r, advantage.gae(gamma, lam))
    np.testing.assert_allclose(both.advantage, estimates, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(both.returns, (estimates + value) * np.asarray(r.mask), rtol=1e-5, atol=1e-5)
    trained = np.asarray(r.mask * r.valid[:, None]) > 0
    total = np.broadcast_to(np.asarray(trajectories.total(r))[:, None], trained.shape)
    np.testing.assert_allclose(total[trained], totals[trained], rtol=1e-6)


@pytest.mark.default_tier("0")
@pytest.mark.parametrize("seed", range(3))
def test_a_trajectory_counts_once_in_its_group(seed):
    r = chapters(seed)
    paid, group = np.asarray(r.token_reward), np.asarray(r.group)
    tokens = trajectory_tokens(r)
    total = {key: sum(paid[p] for p in places) for key, places in tokens.items()}
    of_group = {key: group[places[0][0]] for key, places in tokens.items()}
    centred, alone = np.zeros(r.mask.shape), np.zeros(r.mask.shape)
    for key, places in tokens.items():
        others = [x for k, x in total.items() if of_group[k] == of_group[key]]
        rest = [x for k, x in total.items() if of_group[k] == of_group[key] and k != key and k[1] == key[1]]
        for n, p in enumerate(places):
            ahead = sum(paid[q] for q in places[n:])
            centred[p], alone[p] = ahead - np.mean(others), ahead - (np.mean(rest) if rest else total[key])
    np.testing.assert_allclose(run(r, advantage.center_by_group()).advantage, centred, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run(r, advantage.leave_one_out()).advantage, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("center_by_group", "gae", "zscore_by_group", "leave_one_out", "returns", "log_partition_baseline"),
        *("best_minus_second", "scale_by_informative_share", "mean_over_rows", "mean_over_rows_of_sums"),
    ],
)
@pytest.mark.default_tier("mean_over_rows")
def test_with_one_row_an_episode_nothing_changes_bit_for_bit(name):
    r = np.random.default_rng(0)
    mask = (r.random((8, 5)) < 0.7) * 1.0
    fields = {
        "reward": r.normal(size=8).astype(np.float32),
        "group": np.arange(8) // 4,
        "valid": np.array([1, 1, 1, 0, 1, 1, 1, 1], np.float32),
        "value": r.random((8, 5)).astype(np.float32),
    }
    paid = r.normal(size=(8, 5))
    for payments in (None, paid):
        rollout = rows(mask, payments, **fields, episode=np.array([5, 3, 9, 1, 0, 2, 8, 4]))
        both = rollout, rollout.replace(episode=None, agent=None)
        if name.startswith("mean"):
            one, two = (coefficients(x, getattr(reduce, name)()) for x in both)
        else:
            piece = getattr(advantage, name)()
            one, two = (piece.apply(x, piece.init(), KEY)[0].advantage for x in both)
        np.testing.assert_array_equal(one, two)


def coefficients(rollout, piece):
    """Return the common coefficient of a reduction."""
    prepared = jax.jit(lambda r: piece.apply(r, None, piece.init(), KEY)[0])(rollout)
    return np.asarray(prepared.coefficient["common"])


def test_means_over_rows_give_episodes_of_unequal_length_equal_weight():
    mask = [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0], [0, 0, 0]]
    r = rows(mask, episode=np.array([0, 0, 0, 1, 1, 1]), valid=np.array([1, 1, 1, 1, 0, 0], np.float32))
    by_episode = coefficients(r, reduce.mean_over_rows()).sum(axis=1).reshape(2, 3)
    np.testing.assert_allclose(by_episode, [[1 / 6] * 3, [1 / 2, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(coefficients(r, reduce.mean_over_rows(per="row")).sum(axis=1)[:4], 0.25, rtol=1e-6)
    np.testing.assert_array_equal(coefficients(r, reduce.mean_over_rows_of_sums()), np.asarray(mask) / 2)


def test_the_expected_gradient_over_episodes_of_one_and_two_rows_is_the_true_one():
    logits = jnp.asarray([0.3, -0.6])  # of going on after the first turn, and of token 1 in the second
    worth = {(0,): 1.0, (1, 0): -2.0, (1, 1): 5.0}

    def logps(logits, tokens):
        signs = [1.0 if t else -1.0 for t in tokens]
        return jnp.stack([jax.nn.log_sigmoid(s * logits[k]) for k, s in enumerate(signs)])

    def value(logits):
        return sum(jnp.exp(jnp.sum(logps(logits, t))) * w for t, w in worth.items())

    def batch(pair):  # two episodes, absent turns among their rows
        present = [[k < len(tokens) for k in range(2)] for tokens in pair]
        paid = [[0.0] * (len(tokens) - 1) + [worth[tokens]] + [0.0] * (2 - len(tokens)) for tokens in pair]
        mask = np.asarray(present, np.float32).reshape(4, 1)
        return rows(mask, np.reshape(paid, (4, 1)), episode=np.array([0, 0, 1, 1]), valid=mask[:, 0])

    def weights(r):
        prepared, _ = mean.apply(run(r, advantage.returns()), None, mean.init(), KEY)
        return prepared.coefficient["common"] * prepared.advantage

    mean, pairs = reduce.mean_over_rows_of_sums(), [*itertools.product(worth, repeat=2)]
    weight = jax.jit(jax.vmap(weights))(jax.tree.map(lambda *x: jnp.stack(x), *(batch(pair) for pair in pairs)))
    sequence = [np.pad(tokens, (0, 2 - len(tokens))) for pair in pairs for tokens in pair]
    token = np.reshape(sequence, (-1, 4))
    chance = jnp.asarray([jnp.exp(sum(jnp.sum(logps(logits, tokens)) for tokens in pair)) for pair in pairs])
    score = (token - np.tile(jax.nn.sigmoid(logits), 2))[..., None] * np.tile(np.eye(2), (2, 1))
    expected = np.sum(np.asarray(chance)[:, None, None] * np.asarray(weight) * score, axis=(0, 1))
    np.testing.assert_allclose(expected, jax.grad(value)(logits), rtol=1e-5)


PAID = np.array([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, -1.0]])
TURNS = np.array([[0, 0, 1, 1], [0, 0, 1, 1]])


def conversation(**fields):
    """Return two rows of two turns, whose position 2 is a reply."""
    return rows([[1, 1, 0, 1], [1, 1, 0, 1]], PAID + np.array([0, 0, 9, 0]), turn=TURNS, **fields)


def test_right_is_the_total_and_pieces_that_replace_the_reward_replace_what_turns_were_paid():
    r = conversation()
    np.testing.assert_array_equal(PREDICATES["correct"](r)[:, 0], [True, False])
    for piece, total in ((reward.affine(2.0), [6, -2]), (reward.truncated(0.5), [1.5, -1])):
        out = run(r.replace(finish=jnp.asarray([0, 1])), piece)
        np.testing.assert_allclose(trajectories.total(out), total, rtol=1e-6)
    charged = run(
        r.replace(raw_logp=r.mask * -1.0, ref_logp=r.mask * -2.0, outcome=jnp.asarray([1, 0])),
        reward.kl("k1", 5.0),
    )
    np.testing.assert_allclose(trajectories.total(charged), [3 - 15, -1 - 15])
    np.testing.assert_array_equal(PREDICATES["correct"](charged)[:, 0], [True, False])
    kept = run(charged, reward.outcome(1.0, 0.0))  # the charge stays
    np.testing.assert_allclose(trajectories.total(kept), [1 - 15, -15], rtol=1e-6)
    built = algorithms.example("vision_zero")
    voted = rows(
        np.ones((6, 2)),
        np.ones((6, 2)),
        group=np.zeros(6, np.int32),
        episode=np.arange(6) // 3,
        agent=np.array([0, 1, 2] * 2),
        parts={"votes": np.array([2.0, 1, 0, 0, 1, 1], np.float32)},
        outcome=np.zeros(6, np.int32),
    )
    out = jax.jit(lambda r: interpreter.transform(built, r, interpreter.init(built), KEY)[0])(voted)
    paid = np.asarray(out.reward).reshape(2, 3)
    np.testing.assert_allclose(paid.sum(axis=1), 0, atol=1e-6)  # by game, though both are of one group
    np.testing.assert_allclose(paid[:, 0], [-0.15, 0.1], rtol=1e-5)
    assert out.token_reward is None


def test_turns_are_told_apart_by_replies_and_across_rows():
    r = conversation(extra={"match": np.array([[1, 1, 0, 1], [1, 0, 0, 1]], np.float32)})
    gained = run(r, reward.improvement(10.0)).token_reward
    np.testing.assert_allclose(np.asarray(gained * r.mask)[:, 3], [2 + 10 * (2 - 1), -1 + 10 * (-1 - 0)])
    steps = run(r, reward.turn_returns(0.5)).token_reward
    np.testing.assert_allclose(steps, [[0, 2, 0, 2], [0, 0, 0, -1]])  # the second row misses in turn 0
    split = rows(
        [[1, 1], [0, 1]] * 2,
        np.stack([PAID[:, :2], PAID[:, 2:]], axis=1).reshape(4, 2),
        turn=np.array([[0, 0], [1, 1]] * 2),
        episode=np.array([0, 0, 1, 1]),
    )
    np.testing.assert_allclose(run(split, reward.improvement(10.0)).token_reward[1::2, 1], [12, -11])
    rewarded = advantage.mix(advantage.center_by_group(), advantage.center_steps(("group", "turn")))
    won = run(r.replace(outcome=jnp.asarray([1, 0])), rewarded).advantage
    np.testing.assert_allclose(np.asarray(won)[:, 3], [0.5 + 1.5, -0.5 - 1.5])  # the verdict, and turn 1 against turn 1
    cut = r.replace(finish=jnp.asarray([0, 1]), episode=jnp.asarray([4, 4]))
    dropped, _ = prepare.drop_truncated("episode").apply(cut, None, (), KEY)
    assert not np.any(dropped.mask)


@pytest.mark.full
def test_sources_keep_the_rows_of_a_group_together():
    r = chapters(1, episodes=8)
    r = r.replace(group=(r.episode - 7) // 2, token_reward=r.mask * ((r.group == 0) * r.episode)[:, None])
    count = r.mask.shape[0] // 2
    kept, _ = source.dynamic(2).select(r, (), count, KEY)
    for number in np.unique(kept.group):
        np.testing.assert_array_equal(kept.episode[kept.group == number], r.episode[r.group == number])
    replay = source.replay(0.5)
    fresh = r.replace(group=r.group + 100, episode=r.episode + 100, token_reward=r.token_reward + 1)
    _, pool = replay.select(r, replay.init(r, None), r.mask.shape[0], KEY)
    mixed, _ = replay.select(fresh, pool, r.mask.shape[0], KEY)
    old = np.asarray(mixed.on_policy) == 0
    assert old.sum() == r.mask.shape[0] // 2
    np.testing.assert_array_equal(np.asarray(mixed.episode)[old], np.asarray(r.episode)[old])
    assert {*np.asarray(mixed.episode)[old].tolist()}.isdisjoint(np.asarray(mixed.episode)[~old].tolist())


# --- what worlds supply ------------------------------------------------------------------------


def task(call):
    """Return the task of a call; None where its world is not in the table."""
    names = re.findall(r"(\w+)\(", call)
    if not {*names} <= {*environments.TASKS}:
        return None
    return parse.one(call, parse.Registry("task", environments.TASKS), "task")


@pytest.mark.parametrize("name", inputs.ON_WORLDS)
def test_a_recipe_is_refused_on_one_turn_and_accepted_on_its_world(name):
    call = algorithms.example(name).spec
    with pytest.raises(ValueError, match=rf"{name}\(.* reads .*arithmetic"):
        resolve.phases(tiny.config(call, phases=("main",)))
    if world := task(inputs.ON_WORLDS[name]):
        built = algorithms.example(name)
        assert inputs.unsupplied(built, supplies(world)) == () == inputs.missing_parts(built, world.parts)
        assert shared(world)


MIXED_WRONGLY = {
    "mixture(guess())": "got 1 tasks; give two or more",
    "mixture(guess(), propose())": r"seats of 'propose' is 2, of 'guess' 1; they must agree",
    "mixture(guess(), memory())": r"rows of 'memory' is 'chapters', of 'guess' 'conversation'",
    "mixture(guess(), arithmetic(), weights=(1,))": r"weights=\(1,\): 1 of them for 2 tasks",
    "mixture(guess(), arithmetic(), weights=(0, 0))": r"weights=\(0, 0\): must be 0 or more, with a sum above 0",
    "mixture(guess(), arithmetic(), weights=(1, 1e-5))": r"1e-05 is too small",
    "mixture(guess(), arithmetic(), weights=(-1, 2))": r"weights must be .*0",
    "mixture(guess(), world('tests.talking:Count', max_turns=3))": r"'count' has 3 turns and is judged by worker",
}


def test_what_worlds_supply_and_what_a_group_may_not_compare():
    assert supplies(task("arithmetic()")) == frozenset()
    assert supplies(task("guess()")) == {"token_reward", "turns"}
    assert supplies(task("recorded(tagged())")) == {"token_reward", "turns", "match"}
    assert supplies(task("mixture(guess(numbers=9), guess())")) == {"token_reward", "turns", "domains"}
    with pytest.raises(ValueError, match="has one turn; recorded is around a world"):
        task("recorded(arithmetic())")
    assert supplies(task("mixture(guess(), tagged(), arithmetic())")) == {"token_reward", "turns", "domains", "tag"}
    assert supplies(task("mixture(arithmetic(), countdown())")) == {"domains"}
    for call, words in MIXED_WRONGLY.items():
        with pytest.raises(ValueError, match=words):
            task(call)
    with pytest.raises(
        ValueError, match=r"reads extra\['tag'\], .*task 'guess' supplies; the task supplies token_reward, turns"
    ):
        resolve.phases(tiny.config("rlvmr()", phases=("main",), task="guess()"))


class Anew:
    """A world whose samples begin anew."""

    max_turns, seats, anew, rows = 2, 1, True, "conversation"


def test_groups_do_not_compare_samples_of_different_problems():
    assert not shared(Anew()) and shared(task("guess()")) and shared(task("arithmetic()"))


def played(call, wrong_turn=None):
    """Return the replies of an episode of the expert, who errs in one turn, stacked by turn; and where it goes on."""
    world = task(call)
    world = world.bind(tokenizers.train(world.corpus()))

    def turn(carry, number):
        state, over = carry
        key = jax.random.fold_in(KEY, number)
        token, mask = world.expert(state, jnp.int32(0), key)
        spoiled = jnp.where((jnp.arange(token.size) == 0) & (number == wrong_turn), world.tokenizer.eos, token)
        state, reply = world.step(state, jnp.int32(0), spoiled, mask, key)
        return (state, over | reply.done | reply.truncated), (reply, over)

    @jax.jit
    def episode(index, key):
        start = world.begin(jnp.int32(index), "train", jax.random.key(key)), jnp.zeros((), bool)
        return jax.lax.scan(turn, start, jnp.arange(world.max_turns))[1]

    return world, episode


@pytest.mark.full
def test_the_recorded_trajectory_goes_on_after_a_mistake():
    _, episode = played("recorded(guess(numbers=9, turns=4))", wrong_turn=1)
    several = 0
    for index in range(6):
        reply, over = jax.device_get(episode(index, index))
        turns = int(np.sum(~over))
        match = reply.extra["match"][:turns]
        np.testing.assert_array_equal(match, np.arange(turns) != 1)
        np.testing.assert_array_equal(reply.reward[:turns, 0], match)
        assert reply.done[turns - 1]  # though turn 1 was no number
        assert reply.outcome[turns - 1, 0] == (turns < 2)  # correct where all turns matched
        if turns > 1:
            lengths = np.sum(reply.mask[:turns, 0], axis=1)  # the expert's turn too where the player's differs
            assert lengths[1] >= 2 and (lengths[0] == 1)
            several += 1
    assert several


@pytest.mark.full
def test_tags_are_paid_by_their_rules():
    _, episode = played("tagged(numbers=9, turns=5)", wrong_turn=1)
    for index in range(6):
        reply, over = jax.device_get(episode(index, index))
        turns = int(np.sum(~over))
        hit = np.where(np.arange(turns) == turns - 1, reply.done[turns - 1] * 1.0, 0.0)
        # plan; an unreadable turn; reflect after it; explore
        np.testing.assert_array_equal(reply.extra["tag"][:turns], [1, 0, 3, 2, 2][:turns])
        np.testing.assert_allclose(reply.reward[:turns, 0], hit + 0.1 * np.array([1, 0, 1, 1, 1])[:turns], rtol=1e-6)


@pytest.mark.parametrize("weights", [(1, 1), (3, 1), (0.7, 0.2, 0.1), (1, 0), (2, 2, 2), (0, 5, 3)])
def test_the_problems_of_a_mixture_are_those_of_its_worlds_in_the_shares_of_the_weights(weights):
    made = task(
        f"mixture({', '.join(['guess(numbers=9)', 'tagged()', 'arithmetic(digits=1)'][: len(weights)])}, {weights=})"
    )
    index = np.arange(20 * len(made.order))
    world, number = jax.device_get(made._place(index))
    np.testing.assert_allclose(
        np.bincount(world, minlength=len(weights)) / index.size, np.array(weights) / sum(weights)
    )
    for w, share in enumerate(np.array(weights) / sum(weights)):
        np.testing.assert_array_equal(number[world == w], np.arange(np.sum(world == w)))  # each once, in its order
        drawn = np.cumsum(world == w)
        assert np.all(np.abs(drawn - share * (index + 1)) <= 1)  # spread evenly
    if set(weights) == {1, 0}:
        assert made.size("train") == task("guess(numbers=9)").size("train")
    np.testing.assert_array_equal(made.domain(index, "train"), world)


ALONE = ("guess(numbers=9, turns=4)", "tagged(numbers=9, turns=3)", "arithmetic(operands=2, digits=1)")


@pytest.mark.full
@pytest.mark.parametrize(
    ("calls", "number"), [(ALONE, 0), (ALONE, 2), (("countdown()", ALONE[2]), 1), (("memory()", ALONE[2]), 0)]
)
def test_a_mixture_of_weight_1_on_a_world_samples_as_that_world_alone(calls, number):
    weights = tuple(int(n == number) for n in range(len(calls)))
    rolled = []
    for call in (calls[number], f"mixture({', '.join(calls)}, {weights=})"):
        program = tiny.program("reinforce()", tokenizer__kind="bytes", task=call, batch__prompts=4)
        step = program.steps[0]
        rolled.append(jax.device_get(step.rollout(step.begin(None, program.key), program.key)))
    alone, mixed = rolled
    each, rows = alone.mask.shape[0] // 16, mixed.mask.shape[0] // 16  # of an episode; chapters have one for each turn
    keep = np.arange(mixed.mask.shape[0]) % rows < each
    mixed = jax.tree.map(lambda x: x[keep] if np.ndim(x) else x, mixed)
    width, prompt = alone.mask.shape[1], alone.context.token.shape[1]
    np.testing.assert_array_equal(mixed.context.mask[:, -prompt:], alone.context.mask)
    seen = alone.context.mask > 0
    np.testing.assert_array_equal(mixed.context.token[:, -prompt:][seen], alone.context.token[seen])
    np.testing.assert_array_equal(mixed.mask[:, :width], alone.mask)
    assert not mixed.mask[:, width:].any() and alone.mask.any()
    wrote = alone.mask > 0
    np.testing.assert_array_equal(mixed.action.token[:, :width][wrote], alone.action.token[wrote])
    np.testing.assert_allclose(mixed.behaviour_logp[:, :width], alone.behaviour_logp, atol=2e-5)
    np.testing.assert_array_equal(trajectories.total(mixed), trajectories.total(alone))
    for name in ("outcome", "finish", "valid", "index", "group"):
        np.testing.assert_array_equal(getattr(mixed, name), getattr(alone, name), err_msg=name)
    assert set(mixed.domain.tolist()) == {number}


@pytest.mark.full
def test_shares_of_a_mixture_may_follow_a_schedule():
    source = "mixed((linear(0.0, 1.0, 2), linear(1.0, 0.0, 2), 0.0), candidates=64)"
    call = f"mixture({', '.join(ALONE)})"
    program = tiny.program("reinforce()", tokenizer__kind="bytes", task=call, batch__prompts=4, seam__source=source)
    step = program.steps[0]
    drawn = step.next_prompts(step.begin(None, program.key), program.key)
    assert set(program.tasks[0].domain(drawn.index, "train").tolist()) == {1}  # at step 0
    assert program.tasks[0].domain_names == ("guess", "tagged", "arithmetic")


@pytest.mark.full
@pytest.mark.parametrize("wrong", [None, 0])
def test_parts_of_the_format_say_how_turns_end(wrong):
    _, episode = played("format_parts(guess(numbers=9, turns=4))", wrong)
    reply, over = jax.device_get(episode(1, 1))
    last = int(np.sum(~over)) - 1
    parts = {name: float(x[last, 0]) for name, x in reply.parts.items()}
    assert parts["closing"] == 1 and parts["unclosed"] == 0 and parts["flow"] == (last > 0)


def test_pieces_split_no_episode():
    def split(call, **learner):
        fields = {f"learner__{name}": n for name, n in learner.items()}
        return resolve.phases(tiny.config(call, phases=("main",), task="game('kuhn_poker')", **fields))

    assert split("spiral()", minibatches=8, microbatches=8)  # a row for each seat of 8 * 4 episodes
    with pytest.raises(ValueError, match=r"minibatches=64 .*4 samples, since the 2 rows of an episode stay together"):
        split("spiral()", minibatches=64)
    with pytest.raises(ValueError, match=r"4 samples \* 2 rows of an episode without splitting a group\."):
        split("dpo()", microbatches=16)


def test_a_proposer_is_paid_by_how_hard_its_problem_is_and_the_solver_as_before():
    outcome, parts = np.array([1, 1, 1, 2, 0]), {"solver_success": np.array([0.5, 0.5, 0.5, 0.0, 0.0], np.float32)}
    episode, agent = np.array([0, 0, 0, 1, 2]), np.array([0, 1, 1, 0, 0])
    paid = np.array([[0, 0], [0, 1], [0, 0], [0, 0], [0, 0]])
    r = rows(np.ones((5, 2)), paid, episode=episode, agent=agent, outcome=outcome, parts=parts)
    total = trajectories.total(run(r, reward.learnability()))
    np.testing.assert_allclose(total, [0.5, 1, 1, -1, -0.5])  # both attempts are of one trajectory, paid 1


def test_another_seat_is_no_baseline_of_its_own_episode():
    """In a game of two players the other seat's reward is the row's own with the other sign."""
    won = np.array([1, -1, 1, -1, -1, 1, 1, -1])  # of four episodes, seat 0 and seat 1
    r = rows(np.ones((8, 1)), won[:, None], episode=np.arange(8) // 2, agent=np.arange(8) % 2)
    out = np.asarray(run(r, advantage.leave_one_out()).advantage)[:, 0]
    # seat 0 wins three of four: the mean of the others is 1/3 where it won, 1 where it lost
    np.testing.assert_allclose(out[::2], np.array([2, 2, -6, 2]) / 3, rtol=1e-6)
    np.testing.assert_allclose(out[1::2], -out[::2], rtol=1e-6)


# --- one step of each --------------------------------------------------------------------------


def step(name):
    """Take a gradient of a recipe on rows like those of a world."""
    built = algorithms.example(name)
    needs = interpreter.needs(built)
    r = chapters(3, episodes=4, seats=2 if needs.agents else 1)
    number = np.random.default_rng(4).random(r.mask.shape).astype(np.float32)
    score = -jnp.asarray(number) - 0.1
    r = r.replace(
        action=types.Action(jnp.zeros(r.mask.shape, jnp.int32)),
        domain=r.group,
        outcome=jnp.asarray(trajectories.total(r) > 0, jnp.int32),
        finish=jnp.ones_like(r.group),
        on_policy=jnp.ones_like(r.reward),
        version=jnp.zeros_like(r.turn),
        **{name: score for name in ("behaviour_logp", "raw_logp", "ref_logp", "proximal_logp")},
        entropy=r.value,
        parts={name: jnp.asarray(number[:, 0]) for name in needs.parts},
        extra={name: jnp.asarray(number > 0.3, jnp.float32) for name in needs.extra},
    )
    r, _ = interpreter.transform(built, r, interpreter.init(built), KEY)
    for o, state in zip(built.objectives, interpreter.init(built)["objectives"], strict=True):
        ready, state = interpreter.prepare_minibatch(o, r, types.Scores(logp=score, value=r.value), state, KEY)

        def loss(x, o=o, ready=ready, state=state):
            return interpreter.loss(o, ready, types.Scores(logp=x, value=x), state, KEY)[0]

        gradient = np.asarray(jax.grad(loss)(score * 1.01))
        assert np.all(np.isfinite(gradient)) and np.any(gradient != 0)
        assert not np.any(gradient[np.asarray(r.mask * r.valid[:, None]) == 0])


@pytest.mark.default_tier("spiral")
@pytest.mark.parametrize("name", inputs.ON_WORLDS)
def test_a_gradient_of(name):
    step(name)
