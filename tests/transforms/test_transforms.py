"""The kinds, the combinators and every piece on examples small enough to compute by hand."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, transforms, types
from rljax.algorithms import interpreter
from rljax.transforms import (
    advantage,
    after,
    define,
    penalty,
    prepare,
    ratio,
    reduce,
    reward,
    schedule,
    source,
    surrogate,
    weight,
)
from tests.transforms.transforms_cases import KEY, apply, close, floats, one_row, record

# --- kinds and combinators ------------------------------------------------------------


def test_needs_of_two_are_their_union():
    a = types.Needs(entropy=True, divergence=frozenset({"js"}), whole="episode")
    b = types.Needs(value=True, divergence=frozenset({"reverse_kl"}))
    union = types.Needs(entropy=True, value=True, divergence=frozenset({"js", "reverse_kl"}), whole="episode")
    assert a | b == b | a == union
    assert types.Needs() | a == a
    units = ("row", "episode", "group")
    for x, y in itertools.product(units, units):
        assert (types.Needs(whole=x) | types.Needs(whole=y)).whole == max(x, y, key=units.index)


def counter(name, needs=types.Needs()):
    """Return a piece that counts its uses in its state and writes its key's data into the record."""

    def run(r, count, key):
        data = jax.random.key_data(key)
        return r.replace(reward=r.reward * 10 + count, extra={**r.extra, name: data[None]}), count + 1

    return types.RolloutTransform(run, lambda: 1, lambda count, metrics: count + metrics["step"], needs, "reward", name)


def test_a_chain_runs_in_order_with_a_state_and_a_key_for_each_piece():
    a = counter("a", types.Needs(value=True))
    b = dataclasses.replace(counter("b", types.Needs(reference=True)), init=lambda: 7)
    chain = transforms.chain(a, b)
    assert chain.init() == (1, 7) and chain.spec == "chain(a, b)" and chain.seam == "reward"
    assert chain.needs == types.Needs(value=True, reference=True)
    out, state = chain.apply(record([[1]], (2.0,), (0,)), chain.init(), KEY)
    assert state == (2, 8) and out.reward.tolist() == [(2 * 10 + 1) * 10 + 7]
    for i, name in enumerate("ab"):
        np.testing.assert_array_equal(out.extra[name][0], jax.random.key_data(jax.random.fold_in(KEY, i)))
    assert (out.extra["a"] != out.extra["b"]).any()
    assert chain.observe(state, {"step": 5}) == (7, 13)


def test_a_chain_is_of_one_kind():
    with pytest.raises(ValueError, match="one kind only, got LossTransform, RolloutTransform"):
        transforms.chain(advantage.returns(), ratio.token())
    with pytest.raises(ValueError, match="at least one piece, or the kind"):
        transforms.chain()
    empty = transforms.chain(kind=types.LossTransform)
    loss = types.Loss(terms={"x": jnp.ones(1)})
    assert empty.init() == () and empty.apply(loss, None, None, (), KEY) is loss


def test_a_chain_of_loss_pieces_gathers_what_they_prepare():
    summed = penalty.entropy(reduce=reduce.sum_over_tokens())
    chain = transforms.chain(weight.fresh(), summed, penalty.kl())
    assert [p.seam for p in chain.statistics] == ["", "reduce"]


def test_stateless_lifts_a_function_of_the_records():
    double = define.stateless(types.RolloutTransform, lambda r: r.replace(reward=r.reward * 2))
    out, state = double.apply(record(), "state", KEY)
    assert state == "state" and out.reward.tolist() == [2, 0, 2, 2, 2]
    loss = define.stateless(types.LossTransform, lambda loss, r, s: loss.replace(log_ratio=r.reward))
    assert apply(loss, types.Loss(), record(), None).log_ratio.tolist() == [1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("predicate", "chosen"),
    [
        ("on_policy", [[1, 1], [0, 0], [1, 1]]),
        ("correct", [[1, 1], [0, 0], [0, 0]]),
        ("wrong", [[0, 0], [1, 1], [1, 1]]),
        ("positive", [[1, 0], [0, 1], [0, 0]]),
        ("negative", [[0, 1], [0, 0], [0, 1]]),
    ],
)
def test_where_gives_each_token_the_terms_of_its_branch(predicate, chosen):
    def writes(ratio, **terms):
        full = {k: jnp.full((3, 2), float(v)) for k, v in terms.items()}
        return types.LossTransform(
            lambda loss, r, s, state, key: types.Loss(
                None if ratio is None else jnp.full((3, 2), ratio), terms=full, metrics=full
            )
        )

    r = record(
        [[1, 1]] * 3, (0.5, 0.0, -1.0), (0, 0, 0), on_policy=floats([1, 0, 1]), advantage=[[2, -1], [0, 3], [0, -4]]
    )
    c = np.asarray(chosen)
    out = apply(transforms.where(predicate, writes(3.0, policy=2, kl=5), writes(None, policy=7)), types.Loss(), r, None)
    for arrays in (out.terms, out.metrics):
        np.testing.assert_array_equal(arrays["policy"], np.where(c, 2, 7))
        np.testing.assert_array_equal(arrays["kl"], np.where(c, 5, 0))
    np.testing.assert_array_equal(out.log_ratio, np.where(c, 3.0, 0.0))


def test_where_keeps_the_states_and_keys_of_both_branches():
    steered = penalty.entropy(schedule.linear(1.0, 0.0, 2))
    both = transforms.where("correct", steered, penalty.entropy(4.0))
    state = both.observe(both.init(), {})
    scores = types.Scores(entropy=jnp.ones((5, 3)))
    term = apply(both, types.Loss(), record(), scores, state=state).terms["live_entropy"]
    close(term, np.where(np.array([1, 0, 1, 1, 1])[:, None], -0.5, -4.0) * np.ones((5, 3)))
    assert both.needs.entropy


# --- numbers that move ----------------------------------------------------------------


def walk(controller, steps, metrics=None):
    state, out = controller.init(), []
    for _ in range(steps):
        out.append(float(controller.value(state)))
        state = controller.update(state, metrics or {})
    return out


def test_schedules_and_the_adaptive_coefficient():
    close(walk(schedule.linear(1.0, 0.0, 4), 6), [1, 0.75, 0.5, 0.25, 0, 0])
    close(walk(schedule.cosine(2.0, 0.0, 2), 4), [2, 1, 0, 0])
    # twice the target is clipped to +20 %, of 32 rows in a horizon of 100: a factor of 1.064
    metrics = {"kl": jnp.float32(1.0), "valid_rows": jnp.float32(32)}
    close(walk(schedule.adaptive_kl(0.1, 0.5, 100), 3, metrics), [0.1, 0.1064, 0.1064 * 1.064])
    metrics = {"kl": jnp.float32(0.45), "valid_rows": jnp.float32(50)}  # 10 % below: 1 - 0.1 * 0.5
    close(walk(schedule.adaptive_kl(0.1, 0.5, 100), 2, metrics), [0.1, 0.095])


def test_a_multiplier_is_the_price_of_a_constraint():
    metrics = [{"cost": jnp.float32(x)} for x in (0.5, 0.5, 0.1, 0.0, 9.0)]
    controller, prices = schedule.multiplier("cost", 0.2, rate=2.0, initial=0.5, most=3.0), []
    state = controller.init()
    for row in metrics:
        state = controller.update(state, row)
        prices.append(float(controller.value(state)))
    close(prices, [1.1, 1.7, 1.5, 1.1, 3.0])
    close(walk(schedule.multiplier("cost", 1.0), 3, metrics[0]), [0, 0, 0])  # a constraint that holds costs nothing
    with pytest.raises(ValueError, match="no metric 'speed'; a step has cost"):
        schedule.multiplier("speed", 1.0).update(state, metrics[0])


UP = schedule.linear(0.0, 1.0, 2)


def steered(piece, read, *records):
    """Return what a piece does at its first three steps."""
    state, out = piece.init(), []
    for _ in range(3):
        out.append(read(apply(piece, *records, state=state)))
        state = piece.observe(state, {})
    return out


@pytest.mark.full
def test_a_schedule_may_stand_in_any_kind_of_piece():
    r = one_row([1], reward=1.0, advantage=[1.0], behaviour_logp=[-2.0])
    loss = types.Loss(log_ratio=jnp.log(floats([[1.8]])))
    scores = types.Scores(logp=floats([[-1.6]]), entropy=floats([[3.0]]))
    got = steered(surrogate.clip(0.2, UP), lambda x: float(x.terms["policy"][0, 0]), loss, r, scores)
    close(got, [-1.0, -1.5, -1.8])  # -A min(rho, 1 + high)
    got = steered(penalty.entropy(UP), lambda x: float(x.terms["live_entropy"][0, 0]), loss, r, scores)
    close(got, [0, -1.5, -3])
    got = steered(advantage.sign_weighted(UP), lambda x: float(x.advantage[0, 0]), r)
    close(got, [0, 0.5, 1])
    got = steered(reward.affine(scale=UP, bias=3.0), lambda x: float(x.reward[0]), r)
    close(got, [0, 2, 4])
    # k2 of 0.4 is 0.08: over a bound of 0, within one of 0.5
    piece = prepare.reject("k2", high=UP)
    got = steered(piece, lambda x: float(x.mask[0, 0]), r.replace(proximal_logp=scores.logp), scores)
    close(got, [0, 1, 1])
    got = steered(after.ema_reference(UP), lambda x: float(x["w"]), {"w": jnp.float32(8)}, {"w": jnp.float32(4)}, {})
    close(got, [4, 6, 8])


def test_what_a_piece_prepares_sees_the_same_moving_number():
    @define.constructor("penalty")
    def offset(size: types.Number = 0.0):
        def write(r, scores):
            return r.replace(extra={**r.extra, "offset": r.mask * size})

        def term(loss, r, scores):
            return loss.replace(terms={**loss.terms, "offset": r.extra["offset"] + size})

        piece = define.stateless(types.LossTransform, term)
        return dataclasses.replace(piece, statistics=(define.stateless(types.PrepareTransform, write),))

    algorithm = algorithms.compose(loss=[offset(UP)], reduce=reduce.sum_over_tokens())
    (o,), state, r = algorithm.objectives, interpreter.init(algorithm), record([[1, 1]], (0.0,), (0,))
    totals = []
    for _ in range(3):
        prepared, inner = interpreter.prepare_minibatch(o, r, None, state["objectives"][0], KEY)
        totals.append(float(interpreter.loss(o, prepared, types.Scores(), inner, KEY)[0]))
        state = interpreter.observe(algorithm, {**state, "objectives": (inner,)}, {})
    close(totals, [0, 2, 4])  # two tokens, the number counted in both places


def test_every_piece_of_an_algorithm_is_observed_once_a_step():
    def at(count):
        return int(jax.tree.leaves(count)[0])

    algorithm = algorithms.compose(
        advantage=[advantage.sign_weighted(schedule.linear(0, 1, 9))],
        loss=[ratio.token(), surrogate.clip(high=schedule.linear(0, 1, 9)), penalty.entropy(schedule.linear(0, 1, 9))],
        prepare=[prepare.reject(high=schedule.linear(0, 1, 9))],
        reduce=reduce.mean_over_tokens(),
        after=[after.ema_reference(schedule.linear(0, 1, 9)), after.reset_reference(2)],
    )
    state = interpreter.init(algorithm)
    for _ in range(3):
        state = interpreter.observe(algorithm, state, {})
    inner = state["objectives"][0]
    assert at(state["transforms"][0]) == at(inner["loss"][1]) == at(inner["loss"][2]) == at(inner["prepare"][0]) == 3
    assert at(state["after"][0]) == 3 and at(state["after"][1]) == 0  # counts uses, not observations


def test_a_number_of_a_source_that_fixes_shapes_cannot_move():
    with pytest.raises(ValueError, match="dynamic: oversample cannot be a schedule"):
        source.dynamic(UP)
