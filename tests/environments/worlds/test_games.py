"""Games of pgx: against independent rules in plain Python; what each seat is told; perfect play; Elo and NashConv."""

import functools
import io
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments.worlds import demonstrations
from rljax.environments.worlds.shipped.games import perfect
from rljax.run.games import elo, matches, nashconv, play
from tests.support import tiny

TOKENIZER = tokenizers.make("bytes", [])


@functools.cache
def bound(name, **settings):
    pytest.importorskip("pgx")
    return environments.lookup("game")(name, **settings).bind(TOKENIZER)


def begun(world, index=0, seed=0):
    functions = matches.functions(world)
    return matches.Episode(functions, functions.begin(index, "train", seed), functions.key(index, seed))


def tokens(move):
    return [*TOKENIZER.encode(move), TOKENIZER.eos]


def text(ids):
    return TOKENIZER.decode(ids)


# --- rules in plain Python: the moves so far -> (player to move, legal moves, rewards or None) -------------------


def tic_tac_toe(moves, cards):
    cells = {move: i % 2 for i, move in enumerate(moves)}
    lines = ["123", "456", "789", "147", "258", "369", "159", "357"]
    for player in (0, 1):
        if any(all(cells.get(c) == player for c in line) for line in lines):
            return None, [], (1.0, -1.0) if player == 0 else (-1.0, 1.0)
    if len(moves) == 9:
        return None, [], (0.0, 0.0)
    return len(moves) % 2, [c for c in "123456789" if c not in cells], None


def kuhn_poker(moves, cards):
    ends = {
        ("check", "check"): 1,
        ("bet", "call"): 2,
        ("check", "bet", "call"): 2,
    }
    if moves and moves[-1] == "fold":
        loser = (len(moves) - 1) % 2
        return None, [], tuple(-1.0 if p == loser else 1.0 for p in (0, 1))
    if tuple(moves) in ends:
        stake = float(ends[tuple(moves)])
        first = "JQK".index(cards[0]) > "JQK".index(cards[1])
        return None, [], (stake, -stake) if first else (-stake, stake)
    return len(moves) % 2, ["fold", "call"] if moves[-1:] == ["bet"] else ["check", "bet"], None


@pytest.mark.default_tier(1)
@pytest.mark.parametrize(
    ("oracle", "every"), [(tic_tac_toe, "123456789"), (kuhn_poker, ["check", "bet", "call", "fold"])]
)
def test_random_games_agree_with_rules_in_plain_python(oracle, every):
    world, draw = bound(oracle.__name__), np.random.default_rng(0)
    for game in range(12):
        episode, moves = begun(world, game), []
        cards = [text(episode.context(seat))[0] for seat in (0, 1)]
        while not episode.over:
            player, legal, _ = oracle(moves, cards)
            assert episode.seat == player
            if game % 3 == 2 and len(moves) == game % 2 + 1:  # the turn that is no legal move loses
                move = next(m for m in [*every, "x"] if m not in legal)
            else:
                move = str(draw.choice(legal))
            episode.step(tokens(move))
            if move not in legal:
                lost = {"tic_tac_toe": 1.0, "kuhn_poker": 2.0}[world.name]
                assert episode.over and episode.reward[player] == -lost and episode.reward[1 - player] == lost
                assert episode.outcome[player] == types.Outcome.UNPARSEABLE
                break
            moves.append(move)
            _, _, rewards = oracle(moves, cards)
            assert episode.over == (rewards is not None)
            assert tuple(episode.reward) == (rewards or (0.0, 0.0))
            if rewards:
                assert episode.outcome == [int(r > 0) for r in rewards]


def test_a_seat_is_told_the_moves_of_others_and_nothing_of_their_cards():
    world = bound("kuhn_poker")
    functions = matches.functions(world)
    state = functions.begin(0, "train", 0)
    shown = {}
    for cards in itertools.permutations(range(3), 2):
        dealt = {**state, "game": state["game"].replace(_cards=jnp.asarray(cards, jnp.int32))}
        episode = matches.Episode(functions, dealt)
        for move in ("check", "bet"):
            episode.step(tokens(move))
        shown[cards] = [text(episode.context(seat)) for seat in (0, 1)]
    for mine, one, two in itertools.permutations(range(3)):
        assert shown[mine, one][0] == shown[mine, two][0] == "JQK"[mine] + ">check bet>"
        assert shown[one, mine][1] == shown[two, mine][1] == "JQK"[mine] + " check>bet"


@pytest.mark.full
def test_perfect_players_draw_and_the_first_move_alternates():
    world = bound("tic_tac_toe", opponent="expert")
    index = jnp.arange(8)

    def reward(i):
        state = world.begin(i, "train", jax.random.key(3))
        first = jnp.sum(world.prompt(state, jnp.int32(0))[1])

        def turn(carry, number):
            state, total, over = carry
            token, mask = world.expert(state, jnp.int32(0), jax.random.key(number))
            state, reply = world.step(state, jnp.int32(0), token, mask, jax.random.fold_in(jax.random.key(9), number))
            return (state, total + jnp.where(over, 0.0, reply.reward[0]), over | reply.done), None

        start = (state, jnp.float32(0), jnp.zeros((), bool))
        (state, total, over), _ = jax.lax.scan(turn, start, jnp.arange(world.max_turns))
        return first, total, over, state["player"]

    length, total, over, player = jax.jit(jax.vmap(reward))(index)
    np.testing.assert_array_equal(total, 0.0)  # perfect against perfect is a draw
    assert over.all()
    np.testing.assert_array_equal(player, index % 2)
    np.testing.assert_array_equal(length, 15)


def test_the_table_of_tic_tac_toe_never_loses_against_any_play():
    table = perfect.tic_tac_toe()

    def worst(moves, mark):
        player, legal, rewards = tic_tac_toe(moves, None)
        if rewards is not None:
            return rewards[mark]
        if player == mark:
            cells = {m: i % 2 for i, m in enumerate(moves)}
            code = sum(3**i * (1 if cells[m] == mark else 2) for i, m in enumerate("123456789") if m in cells)
            legal = [m for i, m in enumerate("123456789") if table[code] >> i & 1]
            assert legal
        return min(worst([*moves, m], mark) for m in legal)

    assert worst([], 1) == 0 and worst(["5"], 0 + 1) == 0
    assert min(worst([m, r], 0) for m in "5" for r in "12346789") >= 0


def test_nashconv_is_zero_in_equilibrium_and_that_of_uniform_play_is_derived_by_hand():
    for alpha in (0, 0.1, 1 / 3):
        np.testing.assert_allclose(nashconv.nashconv(perfect.kuhn_poker(alpha)), 0.0, atol=1e-15)
        np.testing.assert_allclose(nashconv.value(perfect.kuhn_poker(alpha)), -1 / 18, atol=1e-15)
    # Against uniform play the first player gets 3/2, 1/2, -1/2 with K, Q, J (bet K and Q; with J a bet and a check
    # that folds earn -1/2 and -1): mean 1/2. The second gets with K (3/2 + 2) / 2, with Q (1/2 + 0) / 2, with J
    # (-1/2 - 1) / 2 after a check and a bet: mean (7/4 + 1/4 - 3/4) / 3 = 5/12.
    np.testing.assert_allclose(nashconv.best_response(np.full(12, 0.5), 0), 1 / 2)
    np.testing.assert_allclose(nashconv.best_response(np.full(12, 0.5), 1), 5 / 12)
    np.testing.assert_allclose(nashconv.nashconv(np.full(12, 0.5)), 11 / 12)
    pure = [np.array(c, float) for c in itertools.product([0, 1], repeat=6)]
    drawn = np.random.default_rng(0).random(12)
    brute = max(nashconv.value(np.concatenate([c, drawn[6:]])) for c in pure)
    np.testing.assert_allclose(nashconv.best_response(drawn, 0), brute)
    brute = max(-nashconv.value(np.concatenate([drawn[:6], c])) for c in pure)
    np.testing.assert_allclose(nashconv.best_response(drawn, 1), brute)
    with pytest.raises(ValueError, match="12 probabilities"):
        nashconv.nashconv(np.full(12, 1.5))


def test_the_strategy_of_a_policy_is_read_from_its_scores_of_moves():
    world = bound("kuhn_poker")
    wanted = np.random.default_rng(1).uniform(0.1, 0.9, 12)
    seen = []

    def logprobs(contexts, moves):
        return [logprob(context, move) for context, move in zip(contexts, moves, strict=True)]

    def logprob(context, move):
        """Score as a policy that plays ``wanted`` and writes a legal move with probability 0.8."""
        card, _, history = text(context).replace(">", " ").partition(" ")
        entry = (card, tuple(history.split()))
        seen.append(entry)
        p = wanted[nashconv.INFORMATION.index(entry)]
        return np.log(0.8 * (p if text(move) in ("bet", "call") else 1 - p))

    chip, legal = nashconv.strategy(world, logprobs)
    np.testing.assert_allclose(chip, wanted, rtol=1e-12)
    np.testing.assert_allclose(legal, 0.8, rtol=1e-12)
    assert set(seen) == set(nashconv.INFORMATION)


def test_elo_of_two_players_is_the_log_odds_and_more_players_are_recovered():
    # 3 of 4 points: odds 3, 400 log10(3) points apart.
    np.testing.assert_allclose(np.diff(elo.fit([[0, 1], [3, 0]]))[0], 400 * np.log10(3), rtol=1e-6)
    true = np.array([120.0, 0.0, -120.0])
    shares = elo.expected(true[:, None] - true[None, :])
    np.testing.assert_allclose(elo.fit(shares * 10 * (1 - np.eye(3))), true, atol=1e-3)
    with pytest.raises(ValueError, match="prior"):
        elo.fit([[0, 4], [0, 0]])
    games = [("new", "old", 1.0)] * 15 + [("new", "old", 0.0)] * 5 + [("old", "new", 0.5)] * 4
    first, second = elo.ratings(games, resamples=40)
    assert (first.player, second.player, first.games) == ("new", "old", 24)
    assert first.low < first.elo < first.high and first.low > 0 > second.high
    with pytest.raises(ValueError, match="score"):
        elo.ratings([("new", "old", 2.0)])


def test_a_mistake_in_a_game_is_named():
    pytest.importorskip("pgx")
    game = environments.lookup("game")
    with pytest.raises(ValueError, match="game='chess': must be"):
        game("chess")
    with pytest.raises(ValueError, match=r"openings=5: must be in \[0, 4\]"):
        game("tic_tac_toe", openings=5)
    with pytest.raises(ValueError, match="has no board"):
        game("kuhn_poker", board=True)


def test_a_person_plays_a_seat_against_a_scripted_other():
    world = bound("tic_tac_toe")
    shown = []

    def show(line, end="\n"):
        shown.append(line)

    class Script:
        name = "policy"

        def __init__(self):
            self.moves = iter("456")

        def __call__(self, context, key):
            return play.Turn(*[tokens(next(self.moves))] * 2)

    person = play.Person(world, TOKENIZER, io.StringIO("too long\n1\n2\n3\n"), show)
    episode = begun(world)
    play.run(episode, [person, Script()], text, show, visible=(0,))
    assert episode.reward == [1.0, -1.0] and episode.turn == 5
    assert "seat 0 (you) is told: 4>" in shown and "seat 0 (you): correct, reward 1" in shown
    assert not any("policy) writes" in line for line in shown)
    assert sum(line == "your turn: " for line in shown) == 4
    with pytest.raises(ValueError, match="standard input has ended"):
        play.run(begun(world), [person, Script()], text, show)


@pytest.mark.full
@pytest.mark.parametrize("task", ["guess()", "game('kuhn_poker')", "game('tic_tac_toe', rows='chapters')"])
def test_a_policy_writes_the_most_probable_tokens_after_what_its_seat_has(task):
    if "game" in task:
        pytest.importorskip("pgx")
    program = tiny.program(tokenizer__kind="bytes")
    world = play.world(program, task, 0)
    params = program.policy.init(jax.random.key(5))
    policy = play.Policy(program, params, world, temperature=0.0)
    episode = begun(world)
    contexts = []

    def watched(context, key):
        turn = policy(context, key)
        contexts.append((context, turn))
        return turn

    watched.name = "policy"
    play.run(episode, [watched] * world.seats, text, lambda line: None, visible=range(world.seats))
    model = program.policy
    token, mask = tokenizers.padded([[*context, *turn.written] for context, turn in contexts], 256, TOKENIZER.pad)
    logits = jax.jit(lambda token, mask: model.logits(params, model.apply(params, token, mask)))(token, mask)
    likely = np.argmax(logits, axis=2)
    for (context, turn), row in zip(contexts, likely, strict=True):
        np.testing.assert_array_equal(row[len(context) - 1 :][: len(turn.written)], turn.written)
    if "guess" in task:
        assert len(contexts) > 1 and contexts[1][0][: len(contexts[0][0])] == contexts[0][0]


@pytest.mark.full
@pytest.mark.parametrize("rows", ["conversation", "chapters"])
@pytest.mark.parametrize("name", ["tic_tac_toe", "kuhn_poker", "leduc_holdem", "connect_four"])
def test_demonstrations_are_legal_and_fit(name, rows):
    world = bound(name, rows=rows, legal=True)
    if rows == "chapters":
        shown = jax.jit(lambda i: demonstrations.chapters(world, i, "train", jax.random.key(1)))(jnp.arange(8))
        written = shown.mask.sum(axis=2) > 0
        for row, turn in zip(*np.nonzero(written), strict=True):
            view = text(shown.prompt.token[row, turn][shown.prompt.mask[row, turn] > 0].tolist())
            move = text(shown.token[row, turn][shown.mask[row, turn] > 0].tolist())
            assert view.endswith(">") and move in view.partition(" legal ")[2][:-1].split()
    else:
        shown = jax.jit(lambda i: demonstrations.conversations(world, i, "train", jax.random.key(1)))(jnp.arange(8))
        assert int(shown.length.max()) < world.completion_length


@pytest.mark.full
@pytest.mark.parametrize("name", ["connect_four", "leduc_holdem", "othello"])
def test_an_opponent_answers_until_the_game_ends(name):
    world = bound(name, opponent="random", openings=0 if name == "leduc_holdem" else 2)
    functions = matches.functions(world)
    expert = jax.jit(world.expert)
    for index in (0, 1):
        state = functions.begin(index, "train", 0)
        for number in range(world.max_turns):
            token, mask = expert(state, jnp.int32(0), jax.random.key(number))
            state, reply = functions.step(state, np.int32(0), token, mask, jax.random.key(number))
            assert bool(reply.valid) and not reply.parts["illegal"][0]
            if reply.done:
                break
        assert bool(reply.done | reply.truncated)
        assert float(reply.reward[0]) == float(state["game"].rewards[index]) or name == "leduc_holdem"
