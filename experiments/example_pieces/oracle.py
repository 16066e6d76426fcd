"""The loss of ``pieces.tapered_rloo`` in plain loops; the battery compares the recipe with it."""

from tests.support.reference import parts
from tests.support.reference.dual import exp, value


def tapered_rloo(d, power=0.5):
    """Return the mean over rows of the sum over tokens of -A logp, multiplied by sg(p^power) where A < 0."""
    advantage = parts.leave_one_out(d)

    def term(i, t):
        logp = d["logp"][i, t]
        return -advantage[i] * (value(exp(power * logp)) if advantage[i] < 0 else 1.0) * logp

    return parts.row_sum_mean(d, term)
