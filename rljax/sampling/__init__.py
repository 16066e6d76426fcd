"""Sampling inside the program: what is drawn, from what, and what is reported of it.

``generate`` prefills each prompt once, repeats its cache for the prompt's samples and decodes in one
``lax.while_loop`` that ends when every row has emitted a stop token. Everything is in-graph: it runs
inside ``jit`` on one device or with rows sharded over a mesh, and inside ``vmap`` (give ``axis_name``).

**What is drawn.** Logits are divided by the temperature, then pass top-k, top-p and min-p in this
order, each on the renormalised result of the one before (``build``). Temperature 0 is greedy: the most probable
token, the lowest id among equals.

**With which randomness.** Token t of row b is drawn with ``fold_in(keys[b], t)``, and ``row_keys``
makes ``keys[b]`` of the run's root key, step, prompt index and sample number. So a completion is a
function of these, the prompt and the parameters: its place in the batch, its companions, the width of
the padding and the number of turns of the loop do not change the draw. (Another batch shape may round
the logits differently in the last bit; a token changes only if that bit decides it.)

**What is reported**, float32, per emitted token, 0 after the end:

==================  ==========================================================================
``behaviour_logp``  log-probability under the distribution drawn from: tempered, filtered, renormalised
``raw_logp``        log-probability under the tempered distribution, unfiltered
``entropy``         nats, of the tempered distribution, unfiltered
``square_prob``     sum of its squared probabilities
``kept``            on request, packed bits of the support drawn from, so that the trainer renormalises
                    over the same tokens under newer weights (``rljax.models.score``)
==================  ==========================================================================

Where there is no filter the two log-probabilities are equal and ``kept`` is None. Greedy decoding
reports ``behaviour_logp`` 0 and the other two at temperature 1.

**How it ends.** ``mask`` is 1 on every emitted token, the stop token among them, or the token with which the
text first holds a stop string (``stopping``); ``finish`` tells a row that stopped (``types.Finish.STOP``) from one
cut at ``length`` (``types.Finish.LENGTH``).

**In segments.** ``resume`` continues rows by a few tokens (``types.Finish.UNFINISHED`` while they go on), under newer
weights if so wished; with the same weights its tokens are those of one ``generate``, wherever it is cut.
"""

from rljax.sampling.config import SamplerConfig
from rljax.sampling.decode import EVERY_TOKEN, Policy, Sample, generate, row_keys
from rljax.sampling.processors import Processors, build, chain, min_p, top_k, top_p
from rljax.sampling.resume import resume
from rljax.sampling.stopping import Ends

__all__ = [
    "EVERY_TOKEN",
    "Ends",
    "Policy",
    "Processors",
    "Sample",
    "SamplerConfig",
    "build",
    "chain",
    "generate",
    "min_p",
    "resume",
]
__all__ += ["row_keys", "top_k", "top_p"]
