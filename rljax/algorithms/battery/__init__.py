"""The battery: what must hold for every loss, whatever its formula, checked on arrays without a model or an oracle.

    findings = rljax.check("my.pieces.recipe()")        # python -m rljax check "my.pieces.recipe()"
    findings = rljax.check("my.pieces.tapered(0.5)")    # one piece, placed in grpo(kl=0.0) at its seam

=====================  =======================================================================================
shapes and dtypes      every piece returns what its seam writes (``transforms.frame.contracts``)
masked                 the gradient at masked tokens and in invalid rows is exactly 0
row order              the order of the rows and the names of the groups do not matter
padding                neither what padding holds nor its width matters
micro-batches          losses and gradients of micro-batches add up to the minibatch
extremes               finite where ratios, rewards, masks or groups are extreme but legal
finite differences     the gradient is the derivative; what is under stop_gradient is held constant
one trace per shape    other values compile nothing
REINFORCE              the on-policy gradient is compared with REINFORCE's; reported, not judged
=====================  =======================================================================================

``batch`` and ``edges`` make the arrays, ``programs`` the compiled losses, ``checks`` the findings, ``command`` prints
them. The tests of rljax run every recipe of the table on the same batches, and compare it with an oracle besides.
"""

from rljax.algorithms.battery.checks import Finding
from rljax.algorithms.battery.command import build, check

__all__ = ["Finding", "build", "check"]
