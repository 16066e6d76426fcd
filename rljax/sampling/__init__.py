"""Sampling inside the compiled program: how tokens are drawn, and what is recorded about them.

``generate`` prefills each prompt once, shares its keys and values among the prompt's samples, and decodes in one
``lax.while_loop`` that ends when every row has stopped. It runs inside ``jit``, on one device or with rows sharded over
a mesh, and inside ``vmap``.

**Distribution.** Logits are divided by the temperature, then filtered by top-k, top-p and min-p in this order, each on
the renormalized result of the previous one (``build``). Temperature 0 is greedy: the most probable token, the lowest id
among equals.

**Randomness.** Token t of row b is drawn with ``fold_in(keys[b], t)``, and ``row_keys`` derives ``keys[b]`` from the
run's root key, step, prompt index and sample number. A completion is a function of these, the prompt and the
parameters; its place in the batch, the other rows, the padding and the number of decode steps do not change it. (The
shape of the batch may change the last bit of a logit, and a token if that bit decides it.)

**Record**, float32, per emitted token, 0 after the end:

==================  ==========================================================================
``behaviour_logp``  log-probability under the distribution drawn from: tempered, filtered, renormalized
``raw_logp``        log-probability under the tempered distribution, unfiltered
``entropy``         nats, of the tempered distribution, unfiltered
``square_prob``     sum of its squared probabilities
``kept``            on request, packed bits of the support drawn from, so that the trainer renormalizes
                    over the same tokens under newer parameters (``rljax.models.scores.scoring``)
==================  ==========================================================================

Without a filter the two log-probabilities are equal and ``kept`` is None. Greedy decoding reports ``behaviour_logp`` 0
and the others at temperature 1.

**End.** ``mask`` is 1 on every emitted token, including the stop token or the token that completes a stop string
(``stopping``). ``finish`` is ``types.Finish.STOP`` in a row that stopped, ``types.Finish.LENGTH`` in one cut at
``length``.

**Segments.** ``resume`` continues rows by a few tokens (``types.Finish.UNFINISHED`` until they end), possibly under
newer parameters. With the same parameters the tokens equal the tokens of one ``generate``, wherever the rows are cut.

**Worlds.** A row may be a conversation: when it ends a turn, its world answers inside the loop, and the reply is read
as forced tokens, whose ``mask`` and values are 0 (``conversation``). Or each turn is a row of its own (``chapters``).

====================  ==============================================================================
``config.py``         the settings
``samples.py``        the protocol ``Policy``, the record ``Sample``, the keys of rows
``processors.py``     temperature and filters; drawing one token
``decode.py``         ``generate`` and its loop; a batch that shrinks as rows end
``segments.py``       ``resume``: rollouts in segments
``dialogue.py``       episodes in progress, and a world's answer to a turn
``conversation.py``   worlds that answer, a row for each conversation
``refill.py``         the same in fewer slots: one whose episode has ended takes the next
``turns.py``          rows whose replies are not computed in the program
``chapters.py``       worlds that answer, a row for each turn
``players.py``        who plays the seats of a world
``critics.py``        critics that shift log-probs, or choose steps of a beam search
``acting.py``         trajectories of control worlds, which have actions in place of tokens
``stopping.py``       stop strings
====================  ==============================================================================
"""

from rljax.sampling.config import SamplerConfig
from rljax.sampling.decode import generate
from rljax.sampling.processors import Processors, build, chain, min_p, top_k, top_p
from rljax.sampling.samples import EVERY_TOKEN, Policy, Sample, row_keys
from rljax.sampling.segments import resume
from rljax.sampling.stopping import Ends

__all__ = ["EVERY_TOKEN", "Ends", "Policy", "Processors", "Sample", "SamplerConfig", "build", "chain", "generate"]
__all__ += ["min_p", "resume", "row_keys", "top_k", "top_p"]
