"""The loss of ``pieces.tapered_rloo`` a second time, in loops: what the battery holds it against."""

from tests.reference import parts
from tests.reference.dual import exp, value


def tapered_rloo(d, power=0.5):
    """-A logp, times sg(p^power) where A < 0; token sums, mean over rows."""
    a = parts.leave_one_out(d)

    def term(i, t):
        logp = d["logp"][i, t]
        return -a[i] * (value(exp(power * logp)) if a[i] < 0 else 1.0) * logp

    return parts.row_sum_mean(d, term)
