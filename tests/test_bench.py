"""The bench runs, compares what it says it compares, and leaves timing to its reader."""

from rljax import algorithms, bench, losses, seams
from tests import tiny


def test_the_extremes_have_equal_needs_and_differ_only_in_their_chains():
    short, long = (seams.algorithm(call, "test") for call in bench.extremes(tiny.config()))
    assert losses.needs(short) == losses.needs(long)
    assert bench.pieces(short) + 3 < bench.pieces(long)
    assert short.source.spec == long.source.spec == "task()"
    assert bench.pieces(algorithms.reinforce()) == 4  # source, returns, reinforce, a reduction


def test_functions_are_timed_turn_about():
    order = []
    times = bench.interleaved({name: lambda n=name: order.append(n) for name in "ab"}, 3)
    assert order == ["b", "a", "a", "b", "b", "a"] and [len(t) for t in times.values()] == [3, 3]


def test_the_algebra_bench_reports_both_chains():
    found = bench.algebra(tiny.config(), 2, ("grpo(kl=0.0)", "dr_grpo()"))
    assert [c["pieces"] for c in found["chains"]] == [6, 5]
    assert all(c["best_ms"] > 0 for c in found["chains"]) and found["ratio"] > 0
