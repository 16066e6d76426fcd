"""Worlds that are made of tasks and of other worlds, played turn by turn with texts and judged in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.config import resolve
from rljax.data import tokenizers
from rljax.environments import worlds
from rljax.environments.worlds import demonstrations, single
from rljax.language import parse
from tests.environments.worlds.wrapper_cases import (
    CORRECT,
    SUMS,
    UNPARSEABLE,
    WRONG,
    answer,
    compiled,
    make,
    play,
    read,
    told,
    written,
    wrong,
)
from tests.support import tiny


@pytest.mark.default_tier(1)
@pytest.mark.parametrize(
    ("text", "split"), [(SUMS, "heldout"), (SUMS, "train"), ("countdown(numbers=2, slip=0.5)", "train")]
)
def test_a_task_as_a_world_gives_the_verdicts_of_the_task(text, split):
    task = make(text)
    world = single.from_task(task)
    index = jnp.arange(64, dtype=jnp.int32)
    assert worlds.in_turns(world) and single.from_task(world) is world

    @jax.jit
    def judged(index):
        token, mask = task.demonstrations(index, split, jax.random.key(3))
        mask = mask.at[:4, -1].set(0.0).at[4:8].set(0.0)  # unclosed and empty ones
        state = jax.vmap(lambda i: world.begin(i, split, jax.random.key(0)))(index)
        seat, keys = jnp.zeros_like(index), jax.random.split(jax.random.key(0), len(index))
        reply = jax.vmap(world.step)(state, seat, token, mask, keys)[1]
        prompt = jax.vmap(world.prompt)(state, seat)
        return prompt, reply, task.verify(index, split, token, mask), task.prompts(index, split)

    prompt, reply, verdict, prompts = jax.tree.map(np.asarray, judged(index))
    assert 0 < np.sum(verdict.reward) < 64
    np.testing.assert_array_equal(reply.reward[:, 0], verdict.reward)
    np.testing.assert_array_equal(reply.outcome[:, 0], verdict.outcome)
    assert set(reply.parts) == set(verdict.parts) == set(world.parts)
    for name, x in verdict.parts.items():
        np.testing.assert_array_equal(reply.parts[name][:, 0], x)
    np.testing.assert_array_equal(prompt[0], prompts.token)
    np.testing.assert_array_equal(prompt[1], prompts.mask)
    assert np.all(reply.done) and not np.any(reply.truncated) and not np.any(reply.mask)


def test_only_device_tasks_become_worlds():
    with pytest.raises(ValueError, match=r"from_task: task 'gym' is judged on the host; give one"):
        single.from_task(type("Hosted", (), {"host": True, "name": "gym"})())


@pytest.mark.parametrize("mode", ["unjudged", pytest.param("judged", marks=pytest.mark.full)])
def test_both_answers_are_paid_and_only_the_second_one_counts(mode):
    world = make(f"revise({SUMS}, mode='{mode}')")
    for index, closed in ((0, True), (5, True), (6, False)):
        right, false = answer(world, index), wrong(world, index)
        unclosed = written(world, right, closed=False)  # no end-of-sequence: it has no answer
        turns = [(right, 1.0), (false, 0.0), ("", 0.0)] + ([] if closed else [(unclosed, 0.0)])
        for first, paid_first in turns:
            for second, paid_second in turns:
                (one, two), _ = play(world, index, [first, second])
                assert [float(one.reward[0]), float(two.reward[0])] == [paid_first, paid_second]
                asked = {"unjudged": "check:", "judged": "right check:" if paid_first else "wrong check:"}[mode]
                assert told(world, one) == asked and told(world, two) == ""
                assert not one.done and two.done and not two.truncated
                assert int(two.outcome[0]) == (CORRECT if paid_second else WRONG if second == false else UNPARSEABLE)
                parts = {name: float(x[0]) for name, x in two.parts.items()}
                assert parts["first"] == paid_first and parts["second"] == paid_second
                assert parts["improved"] == float(paid_second > paid_first)
                assert parts["spoiled"] == float(paid_second < paid_first)
                assert parts["format"] == float(second not in ("", unclosed))


def test_a_critique_is_judged_by_the_first_answer_and_paid_by_the_second():
    world = make(f"revise({SUMS}, mode='critique', rows='chapters')")
    assert (world.seats, world.max_turns) == (2, 3)
    for first_right in (True, False):
        for critique, said in (("right", True), ("wrong", False), ("1right", True), ("righ", None), ("", None)):
            for second_right in (True, False):
                texts = [answer(world, 2) if r else wrong(world, 2) for r in (first_right, second_right)]
                replies, prompts = play(world, 2, [texts[0], critique, texts[1]])
                assert [int(r.next_seat) for r in replies] == [1, 0, 0]
                paid = [list(map(float, r.reward)) for r in replies]
                assert paid == [[first_right, 0.0], [0.0, 0.0], [second_right, second_right]]
                assert list(replies[2].parts["verdict"]) == [0.0, float(said is first_right)]
                assert list(replies[2].parts["improved"]) == [float(second_right and not first_right)] * 2
                problem = world.text(2, "train")
                assert prompts == [
                    problem,
                    f"{problem}{texts[0]}judge:",
                    f"{problem}{texts[0]}judge:{critique}check:",
                ]
    (_, reply, _), _ = play(world, 2, [answer(world, 2), written(world, "right", closed=False), "1"])
    assert not np.any(reply.parts["verdict"])  # a critique without an end has no verdict


@pytest.mark.full
def test_experts_of_revise_correct_their_mistakes():
    world = make(f"revise({SUMS}, mode='critique')")
    index = jnp.arange(32, dtype=jnp.int32)
    rows = jax.jit(lambda key: demonstrations.conversations(world, index, "train", key))(jax.random.key(0))
    token, mask = np.asarray(rows.token[:, 0]), np.asarray(rows.mask[:, 0])
    turn, length = np.asarray(rows.turn[:, 0]), np.asarray(rows.length[:, 0])
    seen = set()
    for i in range(32):
        first, critique, last = (read(world, token[i], mask[i] * (turn[i] == k)) for k in range(3))
        assert last == answer(world, i)
        assert critique == ("right" if first == last else "wrong")
        used = np.arange(token.shape[1]) < length[i]
        assert read(world, token[i], used * (mask[i] == 0)) == "judge:check:"
        seen.add(critique)
    assert seen == {"right", "wrong"}


@pytest.mark.full
def test_second_answers_of_revise_err_where_they_are_not_mended():
    index, errors = jnp.arange(64, dtype=jnp.int32), {}
    for mended in (0.0, 0.5):
        world = make(f"revise({SUMS}, mended={mended})")
        rows = jax.jit(lambda key, w=world: demonstrations.conversations(w, index, "train", key))(jax.random.key(0))
        token, mask, turn = (np.asarray(x[:, 0]) for x in (rows.token, rows.mask, rows.turn))
        answers = [[read(world, token[i], mask[i] * (turn[i] == k)) for i in range(64)] for k in (0, 1)]
        errors[mended] = [[text != answer(world, i) for i, text in enumerate(texts)] for texts in answers]
    first, second = errors[0.0]
    assert any(first) and any(second) and first != second  # mistakes of its own
    assert errors[0.5][0] == first and 0 < sum(errors[0.5][1]) < sum(second)


def test_bad_arguments_of_revise_are_named():
    for text, message in (
        ("revise(3)", "config.task: revise(task=3): task must be a Task."),
        (f"revise({SUMS}, mode='judge')", "mode must be one of 'unjudged', 'judged', 'critique'"),
        (f"revise({SUMS}, instruction='')", "instruction: '' is empty"),
        (f"revise({SUMS}, mended=1.5)", "mended"),
        (f"revise(revise({SUMS}))", "revise: task 'revise' has several turns; give a task of one turn"),
        ("revise(arithmetics())", "unknown name 'arithmetics'. Did you mean 'arithmetic'?"),
    ):
        with pytest.raises(ValueError) as caught:
            make(text)
        assert message in str(caught.value)
    task = parse.one(f"revise({SUMS})", parse.Registry("task", environments.TASKS), "config.task")
    with pytest.raises(ValueError, match=r"instruction: 'check:' is .* train it on the corpus"):
        task.bind(tokenizers.train(["0123456789+=/"]))


@pytest.mark.default_tier(1)
@pytest.mark.parametrize("rows", ["chapters", "conversation"])
def test_a_hint_is_told_only_after_a_failure(rows):
    world = make(f"hint({SUMS}, tries=3, factor=0.5, rows='{rows}')")
    two_digits = next(i for i in range(100) if int(answer(world, i)) > 9)
    one_digit = next(i for i in range(100) if int(answer(world, i)) < 10)
    for index in (two_digits, one_digit):
        right, false, problem = answer(world, index), wrong(world, index), world.text(index, "train")
        hint = f"hint:{right[:-1]}"  # the last digit is never told
        for failures in range(3):
            replies, prompts = play(world, index, [false] * failures + [right])
            assert [told(world, r) for r in replies] == [hint] * failures + [""]
            assert [float(r.reward[0]) for r in replies] == [0.0] * failures + [0.5 if failures else 1.0]
            last = replies[-1]
            assert int(last.outcome[0]) == CORRECT
            assert float(last.parts["first"][0]) == float(failures == 0)
            assert float(last.parts["hinted"][0]) == float(failures > 0)
            later = problem + hint if rows == "chapters" else problem
            assert prompts == [problem, *([later] * failures)]
        replies, _ = play(world, index, [false, "", written(world, right, closed=False)])
        assert [bool(r.done) for r in replies] == [False, False, True] and float(replies[2].reward[0]) == 0
        assert [int(r.outcome[0]) for r in replies] == [WRONG, UNPARSEABLE, UNPARSEABLE]


@pytest.mark.full
def test_a_hint_of_a_world_of_several_turns_begins_the_same_problem_again():
    world, alone = make("hint(guess(numbers=8, turns=2), text='?', shown=1)"), make("guess(numbers=8, turns=2)")
    assert world.max_turns == 4
    secret = int(compiled(alone)[0](jnp.int32(3))["secret"])
    missed = [str((secret + 1) % 8), str((secret + 2) % 8)]
    (one, two, three), _ = play(world, 3, [*missed, str(secret)])
    assert told(world, one) == ("-" if int(missed[0]) > secret else "+")
    assert told(world, two) == "?" and not two.truncated  # the expert's guess has one digit, so none is told
    assert three.done and float(three.reward[0]) == 1 and float(three.parts["hinted"][0]) == 1
    *_, last = play(world, 3, [*missed, *missed])[0]
    assert last.truncated and not last.done and int(last.outcome[0]) == WRONG


def test_thinking_longer_hands_on_the_last_text():
    for rows in ("conversation", "chapters"):
        inner = SUMS if rows == "conversation" else f"hint({SUMS}, rows='chapters')"
        world = make(f"think_longer({inner}, 'Wait', times=2)")
        right, false, problem = answer(world, 4), wrong(world, 4), world.text(4, "train")
        unclosed = written(world, false, closed=False)
        for first, last in ((false, right), (right, false), ("", right), (unclosed, right)):
            (one, two, three), prompts = play(world, 4, [first, right, last])
            assert [told(world, r) for r in (one, two)] == ["Wait", "Wait"]
            assert float(three.reward[0]) == float(last == right) and int(three.outcome[0]) == (
                CORRECT if last == right else WRONG
            )
            assert not any(r.done or r.truncated or r.reward[0] for r in (one, two))
            if rows == "chapters":
                shown = false if first is unclosed else first
                assert prompts == [problem, f"{problem}{shown}Wait", f"{problem}{shown}Wait{right}Wait"]
                assert not three.done or last == right


@pytest.mark.full
def test_thinking_longer_no_times_is_the_world():
    bare = "guess(numbers=8, turns=2)"
    assert make(f"think_longer({bare}, times=0)") == make(bare)
    assert make(f"think_longer({SUMS}, times=0)") == single.from_task(make(SUMS))
    world = make(f"think_longer({bare}, '!')")  # each guess may be changed once; the world reads the second
    alone = make(bare)
    for guesses in (("1", "2"), ("7", "")):
        direct, _ = play(alone, 6, list(guesses))
        waited, _ = play(world, 6, ["5", guesses[0], "5", guesses[1]])
        assert [told(world, r) for r in waited[::2]] == ["!", "!"]
        for one, other in zip(direct, waited[1::2], strict=True):
            assert told(alone, one) == told(world, other)
            for field in ("reward", "outcome", "valid", "done", "truncated", "next_seat", "parts"):
                jax.tree.map(np.testing.assert_array_equal, getattr(one, field), getattr(other, field))


@pytest.mark.parametrize(
    "text", [f"hint({SUMS})", pytest.param(f"think_longer({SUMS}, times=2)", marks=pytest.mark.full)]
)
def test_experts_of_wrappers_end_right(text):
    world = make(text)
    index = jnp.arange(32, dtype=jnp.int32)
    rows = jax.jit(lambda key: demonstrations.conversations(world, index, "train", key))(jax.random.key(0))
    token, mask, turn = (np.asarray(x[:, 0]) for x in (rows.token, rows.mask, rows.turn))
    firsts = 0
    for i in range(32):
        first, last = (read(world, token[i], mask[i] * (turn[i] == k)) for k in (0, turn[i][mask[i] > 0].max()))
        assert last == answer(world, i)
        firsts += first == last
    assert 0 < firsts < 32


def test_bad_arguments_of_wrappers_are_named():
    for text, message in (
        (f"think_longer({SUMS}, '')", "text: '' is empty"),
        (f"think_longer({SUMS}, times=-1)", "times must be a whole number in [0, 64]"),
        (f"hint({SUMS}, tries=1)", "tries must be a whole number in [2, 64]"),
        ("hint(guess(), rows='chapters')", "rows: 'chapters'; world 'guess' of 6 turns has rows 'conversation'"),
        (
            f"hint(revise({SUMS}, mode='critique', rows='chapters'))",
            "hint: world 'revise' has 2 seats; a hint is for worlds of one seat",
        ),
    ):
        with pytest.raises(ValueError) as caught:
            make(text)
        assert message in str(caught.value)


def test_a_config_names_a_world_of_a_task():
    for text, turns in ((f"revise({SUMS})", 2), ("think_longer(hint(guess(turns=3)), 'Wait', times=2)", 18)):
        (phase,) = resolve.phases(tiny.config(task=text, phases=("main",)))
        assert phase.task.max_turns == turns and worlds.in_turns(phase.task)
    with pytest.raises(ValueError, match=r"config.task: revise\(\) has no argument 'digits'"):
        resolve.phases(tiny.config(task="revise(digits=2)", phases=("main",)))


@pytest.mark.full
@pytest.mark.parametrize(("kept", "text"), [(1, "..."), (9, "..."), (0, "")])
def test_old_replies_are_left_out_of_the_prompts_of_chapters(kept, text):
    inner = make("calculator(turns=4)")
    world = make(f"compress(calculator(turns=4), kept={kept}, text={text!r})")
    said = ["12+3", "1+", "1*9", "=7"]
    replies, (problem, *_) = play(inner, 3, said)
    told_before = [told(inner, reply) for reply in replies]
    compressed, prompts = play(world, 3, said)
    for n, prompt in enumerate(prompts):
        shown = [reply if k >= n - kept else text for k, reply in enumerate(told_before[:n])]
        end = world.tokenizer.decode([world.tokenizer.eos])
        assert prompt == problem + "".join(f"{turn}{end}{reply}" for turn, reply in zip(said, shown, strict=False))
    for one, two in zip(replies, compressed, strict=True):
        assert not two.mask.any() and all(
            np.array_equal(getattr(one, name), getattr(two, name))
            for name in ("reward", "outcome", "done", "truncated")
        )


@pytest.mark.full
def test_hinted_attempts_are_trained_under_the_plain_prompt():
    world = make(f"hint({SUMS}, rows='chapters', plain=True)")
    begin, _, step = compiled(world)
    state, problem = begin(jnp.int32(1)), world.inner.text(1, "train")
    _, prompts = play(world, 1, [wrong(world.inner, 1), answer(world.inner, 1)])
    assert prompts[0] == problem and prompts[1].startswith(f"{problem}hint:")
    state, _ = step(state, jnp.int32(0), *written(world, wrong(world.inner, 1)))
    both = types.Prompts.of(world, state, jnp.int32(0))
    assert read(world, both.token, both.mask) == prompts[1] and read(world, *both.context.training) == problem
    with pytest.raises(ValueError, match="plain: True needs rows in chapters"):
        make(f"hint({SUMS}, plain=True)")
    with pytest.raises(ValueError, match="compress: world 'tic_tac_toe' has 2 seats"):
        make("compress(game('tic_tac_toe'))")
