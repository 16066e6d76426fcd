"""Worlds of characters against plain Python that reads only what the players read and write."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.data import shuffle, tokenizers
from rljax.environments import characters
from rljax.environments.worlds import text as texts
from rljax.environments.worlds.shipped import retry
from rljax.language import parse
from tests.environments.worlds import world_oracles

PROBLEMS, NOISES = 12, (0.0, 0.1, 0.4, 1.0)  # rows are problems times noises
CORRECT, WRONG, UNPARSEABLE = types.Outcome.CORRECT, types.Outcome.WRONG, types.Outcome.UNPARSEABLE


def world(call):
    return parse.one(call, parse.Registry("task", environments.TASKS), "task")


# --- a policy that writes what the expert writes, with random tokens in between --------------------


@functools.cache
def episodes(call, kind="bytes"):
    """Play PROBLEMS held-out problems with each noise; return the world and one array [rows, turns, ...] a field."""
    w = world(call)
    w = w.bind(tokenizers.make(kind, w.corpus() if kind == "char" else ()))
    vocabulary = len(w.tokenizer.characters())

    def episode(index, noise, key):
        def turn(state, number):
            keys = jax.random.split(jax.random.fold_in(key, number), 6)
            prompt = w.prompt(state, jnp.int32(0))
            token, mask = w.expert(state, jnp.int32(0), keys[0])
            other = jax.random.randint(keys[1], token.shape, 0, vocabulary)
            other = jnp.where(jax.random.bernoulli(keys[2], 0.5), other, jnp.roll(token, 1))
            length = jax.random.randint(keys[3], (), 1, token.shape[0] + 1)
            mask = jnp.where(noise < 1, mask, (jnp.arange(token.shape[0]) < length).astype(jnp.float32))
            token = jnp.where(jax.random.bernoulli(keys[4], noise, token.shape), other, token)
            state, reply = w.step(state, jnp.int32(0), token, mask, keys[5])
            return state, (prompt, (token, mask), reply)

        return jax.lax.scan(turn, w.begin(index, "heldout", key), jnp.arange(w.max_turns))[1]

    index = jnp.arange(PROBLEMS * len(NOISES), dtype=jnp.int32) % PROBLEMS
    noise = jnp.repeat(jnp.asarray(NOISES), PROBLEMS)
    keys = jax.random.split(jax.random.key(3), len(index))
    return w, jax.tree.map(np.asarray, jax.jit(jax.vmap(episode))(index, noise, keys))


def text(w, token, mask):
    """Return a text up to end-of-sequence, tokens that are no character as a question mark."""
    code = w.tokenizer.characters()
    ids = [int(t) for t in token[mask > 0]]
    ids = ids[: ids.index(w.tokenizer.eos)] if w.tokenizer.eos in ids else ids
    return "".join(chr(code[t]) if code[t] else "?" for t in ids)


def transcript(w, rows, row):
    """Return [(prompt, turn, reply)] of an episode up to its end."""
    prompt, turn, reply = rows
    turns = []
    for k in range(w.max_turns):
        answer = text(w, reply.token[row, k, 0], reply.mask[row, k, 0])
        read = text(w, prompt[0][row, k], prompt[1][row, k])
        wrote = text(w, turn[0][row, k], turn[1][row, k])[: w.rules.turn_length]
        ended = w.tokenizer.eos in turn[0][row, k][turn[1][row, k] > 0]
        wrote = wrote if ended or w.rows == "chapters" else "?"  # a turn that is cut is not what was meant
        turns.append((read, wrote, answer))
        if reply.done[row, k] or reply.truncated[row, k]:
            break
    return turns


def known(w, rows, oracle, problem):
    """Return what the texts of all episodes of a problem say about its secret."""
    if hasattr(oracle, "replies"):
        return [(turn, reply) for _, turn, reply in transcript(w, rows, problem)]
    if oracle is not world_oracles.ORACLES["retry"][1]:
        return [turn for _, turn, _ in transcript(w, rows, problem)]
    replies = {r for n in range(len(NOISES)) for _, _, r in transcript(w, rows, problem + n * PROBLEMS)}
    (value,) = replies - {"-", "?", ""} or {"none"}  # the same in all episodes
    return value


def check(name, kind):
    call, make = world_oracles.ORACLES[name]
    w, rows = episodes(call, kind)
    reply, total = rows[2], collections.Counter()
    assert all(x.dtype == np.float32 for x in (reply.mask, reply.reward, reply.valid, *reply.parts.values()))
    assert reply.token.shape[2:] == (1, w.reply_length) and reply.token.dtype == np.int32
    assert reply.done.dtype == reply.truncated.dtype == bool
    assert set(reply.parts) == set(w.parts) and reply.valid.all()
    assert not (reply.done & reply.truncated).any()
    assert (reply.done | reply.truncated)[:, -1].all() or name in ("memory",)
    for row in range(PROBLEMS * len(NOISES)):
        turns = transcript(w, rows, row)
        oracle = make(turns[0][0], w, known(w, rows, make, row % PROBLEMS))
        for k, (prompt, turn, answer) in enumerate(turns):
            if w.rows == "chapters":
                oracle.read(prompt)
            said, reward, done, outcome = oracle.turn(turn)
            assert said is None or answer == said or (isinstance(said, set) and answer in said), (turns, said)
            assert reply.reward[row, k, 0] == pytest.approx(reward), turns
            assert (bool(reply.done[row, k]), int(reply.outcome[row, k, 0])) == (done, outcome), turns
            assert bool(reply.truncated[row, k]) == (not done and k == w.max_turns - 1)
            assert {p: float(x[row, k, 0]) for p, x in reply.parts.items()} == pytest.approx(oracle.parts), turns
            if hasattr(oracle, "told"):
                oracle.told(answer)
            total[outcome] += 1
        if row < PROBLEMS:  # the expert
            right = reward >= 1 - getattr(oracle, "efficiency", 0) and outcome == CORRECT
            assert right or getattr(oracle, "fallible", False), turns
            getattr(oracle, "finished", lambda: None)()
    assert len(total) == 3  # the noise made all kinds of turns


@pytest.mark.default_tier("maze", "retry")
@pytest.mark.parametrize("name", world_oracles.ORACLES)
def test_texts(name):
    check(name, "bytes")


@pytest.mark.full
@pytest.mark.parametrize("name", ["calculator", "colours", "guess"])
def test_texts_in_characters(name):
    check(name, "char")


def test_every_world_has_a_constructor_and_binds_to_bytes():
    for name in (
        "calculator",
        "maze",
        "memory",
        "guess",
        "twenty_questions",
        "wordle",
        "retry",
        "jobs",
        "tour",
        "signals",
    ):
        w = world(f"{name}()")
        assert environments.worlds.in_turns(w.bind(tokenizers.make("bytes", ()))) and w.name == name


def test_random_bytes_in_a_note_become_question_marks():
    """A note never brings tokens into a prompt that the world does not write."""
    w, (prompt, _, _) = episodes(world_oracles.ORACLES["memory"][0])
    allowed = {int(i) for i in characters.table(w.tokenizer, w.rules.alphabet, "memory")}
    assert set(prompt[0][prompt[1] > 0].tolist()) <= allowed


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("calculator(digits=5)", "digits=5"),
        ("calculator(turns=2)", r"turns: 2 is not in \[3, 64\]"),
        ("calculator(skill=1.5)", "skill=1.5"),
        ("calculator(length=5)", "length = 5: a turn has up to 11 tokens"),
        ("maze(side=2)", "side=2"),
        ("maze(turns=0)", "turns: 0"),
        ("maze(view='all')", "position"),
        ("memory(note=3)", "note: 3 characters; asked = 2 facts need 4"),
        ("memory(keys=27)", "keys=27"),
        ("guess(numbers=1)", "numbers=1"),
        ("guess(heldout=0.9)", "heldout=0.9"),
        ("twenty_questions(turns=65)", "turns=65"),
        ("wordle(letters=26, length=8)", "length: 26 letters make"),
        ("wordle(words='abc abcd')", "words: 'abcd' is not as long as 'abc'"),
        ("wordle(words='abc abc')", "1 of them different"),
        ("wordle(words='aBc abc')", "words: 'aBc' is not"),
        ("jobs(jobs=7)", "jobs=7"),
        ("jobs(jobs=(4, 2))", r"jobs: \(4, 2\): expected \(least, most\)"),
        ("tour(cities=3)", "cities=3"),
        ("signals(flow=0)", "flow=0"),
        ("quest(subgoal=2.0)", "subgoal=2.0"),
        ("tamper(digits=3)", "digits=3"),
        ("agree(items=7)", "items=7"),
        ("bargain(turns=1)", "turns=1"),
        ("retry(found=-1)", "found=-1"),
        ("retry(turns=1)", "turns=1"),
    ],
)
def test_settings_out_of_range(call, message):
    with pytest.raises(ValueError, match=message):
        world(call)


@pytest.mark.full
def test_demonstrations_of_mixed_quality():
    """Shares of experts that use their tool are within four standard errors of the settings."""
    for call, sign, share in (("calculator(skill=0.3)", "=", 0.7), ("retry(found=0.0, persistence=0.2)", "", 0.8)):
        w = world(call).bind(tokenizers.make("bytes", ()))
        token, mask = w.demonstrations(jnp.arange(512), "train", jax.random.key(0))
        texts = [text(w, t, m * (np.cumsum(m * (t == w.tokenizer.eos)) < 1)) for t, m in zip(token, mask, strict=True)]
        if sign:
            count = np.mean([t.startswith(sign) for t in texts])
        else:  # one search, then the answer: two turns
            count = np.mean(np.sum(np.asarray((token == w.tokenizer.eos) & (mask > 0)), axis=1) == 2)
        assert abs(count - share) < 4 * (share * (1 - share) / 512) ** 0.5


@pytest.mark.full
@pytest.mark.parametrize(
    "call",
    [
        *("calculator(digits=1, terms=2)", "memory(chunks=1, facts=1, keys=2, asked=1, note=2)", "maze(side=3)"),
        *(
            "jobs(jobs=2, machines=2)",
            "tour(cities=(4, 6), side=3)",
            "signals()",
            "quest(plan=True)",
            "tamper(numbers=2)",
            "agree(items=2)",
        ),
    ],
)
def test_no_prompt_is_in_both_splits(call):
    """Prompts of these tell the whole problem; for numbered ones, both splits together are all of them."""
    w = world(call)

    def prompts(split):
        index = jnp.arange(min(w.size(split), 4000), dtype=jnp.int32)
        code = jax.jit(jax.vmap(lambda i: w.rules.prompt(w.begin(i, split, jax.random.key(0)), jnp.int32(0))))(index)
        return set(characters.strings(code))

    train, heldout = prompts("train"), prompts("heldout")
    assert not train & heldout
    if w.name in ("calculator", "memory"):
        assert len(train | heldout) == {"calculator": 81, "memory": 20}[w.name]


@pytest.mark.full
def test_secrets():
    """Without held-out secrets all are about as frequent in both splits; with them, no secret is in both."""
    for call in ("guess(numbers=16)", "guess(numbers=16, heldout=0.25)"):
        rules = world(call).rules
        draw = jax.jit(jax.vmap(rules.secret.draw, in_axes=(0, None)), static_argnums=1)
        drawn = [np.bincount(draw(jnp.arange(4096), split), minlength=16) for split in ("train", "heldout")]
        if rules.secret.heldout:
            assert not np.any((drawn[0] > 0) & (drawn[1] > 0)) and (drawn[0] > 0).sum() == 12
        else:
            assert all(abs(count - 256) < 80 for count in np.concatenate(drawn))


def test_noise_is_drawn_by_domain():
    """Each search of a domain is wrong with its share of noise, up to a random value that is right by chance."""
    shares = (0.0, 0.5, 1.0)
    rules = retry.Retry(found=1.0, noise=shares, turns=2)
    index = jnp.arange(3 * 2000, dtype=jnp.int32)
    keys = jax.random.split(jax.random.key(0), index.size)

    def told(i, key):
        state = rules.begin(i, "train", key)
        after, answer = rules.step(state, jnp.int32(0), rules.expert(state, jnp.int32(0), key), key)
        return state["value"] == after["shown"], answer.domain, rules.domain(i, "train")

    right, domain, drawn = jax.jit(jax.vmap(told))(index, keys)
    np.testing.assert_array_equal(domain, drawn)
    for number, share in enumerate(shares):
        expected = 1 - share * 0.99
        seen = np.asarray(right)[np.asarray(domain) == number]
        assert abs(seen.mean() - expected) <= 5 * (expected * (1 - expected) / seen.size) ** 0.5 + 1e-9
    task = texts.TextWorld(rules)
    assert task.domains == 3 and task.domain_names == ("0", "0.5", "1") and task.size("train") % 3 == 0


@pytest.mark.parametrize("call", ["tour(cities=(4, 8), side=7, heldout=0.05)", f"retry(digits=4, noise={(0.5,) * 12})"])
def test_a_world_with_more_problems_than_can_be_numbered_has_as_many_as_can(call):
    task = world(call)
    assert 2**29 < task.size("train") < shuffle.LARGEST and task.size("train") % task.domains == 0
