"""Recipes on rows as worlds make them: what worlds supply; one step of each."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, environments, types
from rljax.algorithms import inputs, interpreter
from rljax.config import resolve
from rljax.data import tokenizers
from rljax.environments.traits import traits
from rljax.language import parse
from rljax.transforms import advantage, reward, trajectories
from tests.algorithms import recipes
from tests.algorithms.recipes_on_worlds_cases import KEY, chapters, rows, run
from tests.support import tiny

# --- what worlds supply ---------------------------------------------------------------


def task(call):
    """Return the task of a call; None where its world is not in the table."""
    names = re.findall(r"(\w+)\(", call)
    if not {*names} <= {*environments.TASKS}:
        return None
    return parse.one(call, parse.Registry("task", environments.TASKS), "task")


@pytest.mark.parametrize("name", recipes.ON_WORLDS)
def test_a_recipe_is_refused_on_one_turn_and_accepted_on_its_world(name):
    call = algorithms.example(name).spec
    with pytest.raises(ValueError, match=rf"{name}\(.* reads .*arithmetic"):
        resolve.phases(tiny.config(call, phases=("main",)))
    if world := task(recipes.ON_WORLDS[name]):
        built = algorithms.example(name)
        assert inputs.unsupplied(built, traits(world).supplies) == () == inputs.missing_parts(built, world.parts)
        assert traits(world).shared


MIXED_WRONGLY = {
    "mixture(guess())": "got 1 tasks; give two or more",
    "mixture(guess(), propose())": r"seats of 'propose' is 2, of 'guess' 1; they must agree",
    "mixture(guess(), memory())": r"rows of 'memory' is 'chapters', of 'guess' 'conversation'",
    "mixture(guess(), arithmetic(), weights=(1,))": r"weights=\(1,\): 1 of them for 2 tasks",
    "mixture(guess(), arithmetic(), weights=(0, 0))": r"weights=\(0, 0\): must be 0 or more, with a sum above 0",
    "mixture(guess(), arithmetic(), weights=(1, 1e-5))": r"1e-05 is too small",
    "mixture(guess(), arithmetic(), weights=(-1, 2))": r"weights must be .*0",
    "mixture(guess(), world('tests.support.talking:Count', max_turns=3))": "'count' has 3 turns and is judged by work",
}


def test_what_worlds_supply_and_what_a_group_may_not_compare():
    assert traits(task("arithmetic()")).supplies == frozenset()
    assert traits(task("guess()")).supplies == {"token_reward", "turns"}
    assert traits(task("recorded(tagged())")).supplies == {"token_reward", "turns", "match"}
    assert traits(task("mixture(guess(numbers=9), guess())")).supplies == {"token_reward", "turns", "domains"}
    with pytest.raises(ValueError, match="has one turn; recorded is around a world"):
        task("recorded(arithmetic())")
    assert traits(task("mixture(guess(), tagged(), arithmetic())")).supplies == {
        "token_reward",
        "turns",
        "domains",
        "tag",
    }
    assert traits(task("mixture(arithmetic(), countdown())")).supplies == {"domains"}
    for call, words in MIXED_WRONGLY.items():
        with pytest.raises(ValueError, match=words):
            task(call)
    with pytest.raises(
        ValueError, match=r"reads extra\['tag'\], .*task 'guess' supplies; the task supplies token_reward, turns"
    ):
        resolve.phases(tiny.config("rlvmr()", phases=("main",), task="guess()"))


class Anew:
    """A world whose samples begin anew."""

    host, max_turns, seats, anew, rows = False, 2, 1, True, "conversation"


def test_groups_do_not_compare_samples_of_different_problems():
    assert not traits(Anew()).shared and all(traits(task(call)).shared for call in ("guess()", "arithmetic()"))


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


# --- one step of each -----------------------------------------------------------------


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
        scores={m: types.Scores(**{f: r.value for name, f in needs.scores if name == m}) for m, _ in needs.scores},
    )
    r, _ = interpreter.transform(built, r, interpreter.init(built), KEY)
    for o, state in zip(built.objectives, interpreter.init(built)["objectives"], strict=True):
        ready, state = interpreter.prepare_minibatch(
            o, r, types.Scores(logp=score, value=r.value, process=r.value), state, KEY
        )

        def loss(x, o=o, ready=ready, state=state):
            scores = types.Scores(logp=x, value=x, process=x, value_logits=jnp.stack([-x, x], axis=-1))
            return interpreter.loss(o, ready, scores, state, KEY)[0]

        gradient = np.asarray(jax.grad(loss)(score * 1.01))
        assert np.all(np.isfinite(gradient)) and np.any(gradient != 0)
        assert not np.any(gradient[np.asarray(r.mask * r.valid[:, None]) == 0])


@pytest.mark.default_tier("spiral")
@pytest.mark.parametrize("name", recipes.ON_WORLDS)
def test_a_gradient_of(name):
    step(name)
