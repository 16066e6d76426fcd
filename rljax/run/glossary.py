"""The glossary: unit, meaning and bad values of everything that a run logs as a number.

    python -m rljax metrics --glossary

Metrics of a critic or a reward model have the name of the module before them: ``value/loss``. A piece of one's own
names its metrics ``own/...`` and explains them in its docstring; tests/test_watch.py refuses other names.
"""

import re
from typing import NamedTuple

import rich.console

from rljax.run import terminal


class Entry(NamedTuple):
    """What a number means."""

    name: str  # a name that ends in * stands for all names that begin so
    unit: str
    meaning: str
    bad: str  # what a bad value means


def _entries(text: str) -> tuple[Entry, ...]:
    """Parse two lines for each entry: "name [unit] meaning", and what a bad value means."""
    lines = text.strip().splitlines()
    heads = (re.fullmatch(r"(\S+) \[(.+?)\] (.+)", head) for head in lines[::2])
    return tuple(
        Entry(head[1], head[2], head[3], bad.strip()) for head, bad in zip(heads, lines[1::2], strict=True) if head
    )


METRICS = _entries("""
accuracy [fraction] rows that the verifier calls correct, of those the policy wrote, in the first pass if there are two
    0 or 1 for long: the task is too hard or solved, and groups are flat
accuracy/domain/* [fraction] accuracy on the prompts of one domain, if the task has 2 to 32
    far below the others: the domain is too hard, or is drawn too rarely
advantage_abs [reward] mean |advantage| of the tokens
    0: the policy term has no gradient
age [updates] versions between the one that wrote a token and the trainer's
    growing: rows wait too long; use a ratio to the sampler or weight.fresh()
bias_early [reward] value that advantages read minus its target, mean over the first third of each row's tokens
    far from 0: the critic lags; train it alone first, or with more epochs
bias_late [reward] the same over the last third
    see bias_early
bias_middle [reward] the same over the middle third
    see bias_early
carried [fraction] rows that are unfinished and carried to the next step
    near 1: the segment is much shorter than the completions
classified [fraction] rows that the reward model puts on the right side of each level, or steps as their labels; mean
    near 0.5: nothing is learned
clipped [fraction] tokens whose gradient the clip or the mask of the surrogate removes
    above 0.3: the updates are large; 0 always: the clip has no effect
clipped_negative [fraction] tokens of ``clipped`` with advantage below 0; under clip(), below its lower bound
    far above clipped_positive: tokens to discourage reach their bound first
clipped_positive [fraction] tokens of ``clipped`` with advantage above 0; under clip(), above its upper bound
    far above clipped_negative: raise the upper bound if entropy falls
covariance_kl [nats] mean |logp - proximal| of all tokens, charged to those of highest covariance
    growing over the steps: updates are too large
distillation [nats] exact divergence of the policy from its teacher at the states of the rows
    not falling: the learning rate is too low, or the teacher's rows are unlike the policy's
effective_samples [fraction] (sum w)^2 / (n sum w^2) over tokens, w = p / p at sampling, before any clip; 1 if all equal
    below 0.9: few tokens have much of the weight; rows are stale, or sampler and trainer disagree
entropy [nats] entropy of the sampling distribution, mean over tokens
    near 0: samples of a prompt are equal; near log(vocabulary): the policy is random
entropy_early [nats] entropy over the first third of each row's tokens
    near 0: all samples of a prompt begin alike
entropy_late [nats] the same over the last third
    see entropy
entropy_middle [nats] the same over the middle third
    see entropy
experts/fullest [ratio] load of the fullest expert over the mean load
    near the number of experts: the router has collapsed
experts/loss [ratio] balance loss of the router, 1 if uniform
    far above 1: few experts are used
experts/unused [fraction] experts that no token chose
    above 0: capacity that is paid for and not used
explained_variance [fraction] 1 - Var(R - V) / Var(R) over tokens, R the target, V the value that advantages read
    0 or less: the critic predicts no better than a constant
f_divergence [nats] f-divergence to the reference
    growing without limit: raise its coefficient
failed [rows] rows on which a task or world of the program returned a value that is not allowed; they do not count
    above 0: a warning of the run names the first row and problem; outcome/crashed is the share of them
fired [fraction] prompts or rows of a step on which the source acted: draws, heads, second passes, memories, filters
    0 for long: the source does nothing; its condition never holds, or no prompt comes again
flat_groups [fraction] groups in which all samples have equal rewards
    near 1: no group informs; more samples, or an easier or harder task
gradient_cosine [none] cosine of the policy term's gradients of tokens with positive and with negative advantage
    near -1: they cancel, and little of the gradient is left
gradient_negative [none] norm of the policy term's gradient of the tokens with negative advantage
    far above gradient_positive: updates mostly lower probabilities
gradient_norm [none] global norm of the gradient before clipping, mean over the gradient steps
    0: nothing is learned; far above config.learner.clip_norm: every step is clipped
gradient_positive [none] the same of the tokens with positive advantage; mean over the gradient steps
    0: no row is better than its baseline
head [tokens] tokens that a row was given to begin with, mean
    not falling with a curriculum: the success rate that moves it is not reached
hint_nll [nats] mean -logp of the tokens that a row was given to begin with
    growing: the policy unlearns the demonstrations
kl [nats] KL to the reference for each token: of the sampler, or of the policy where a penalty measures it
    above 1: far from the start, often a hacked reward; large jumps: lower the learning rate
kl_exact [nats] KL to the reference summed over the vocabulary, of the policy before the update, mean over tokens
    see kl
kl_k3 [nats] k3 of the same policy on the sampled tokens; its expectation is kl_exact if this policy sampled them
    far from kl_exact on average: rare tokens of large ratios decide the estimate, or the rows are stale
length [tokens] tokens that the policy wrote in a row, mean
    falling to 1, or rising to the limit with constant reward: length is exploited
live_entropy [nats] entropy of the policy during the update, of the penalty on it
    near 0: raise its coefficient
loss [none] sum of the terms, which the optimizer descends; mean over the gradient steps
    not finite; its level means little, as advantages sum to about 0
loss/* [none] one term of the loss: policy, value, kl, ...
    one term far above the others in size: its coefficient is too large
moved_largest [probability] largest |p after - p before the update| of a sampled token
    near 1 in every step: lower the learning rate
moved_mean [probability] mean of the same over the sampled tokens
    0: the update does nothing; above 0.1: one update changes much of the policy
nll [nats] negative log-likelihood of all tokens
    rising while it is trained: the policy term works against it
noise_scale [prompts] noise_trace / noise_square; 0 if noise_square <= 0. Average both over steps before dividing
    far above the prompts of a gradient step: more prompts help; far below: fewer would do
noise_square [none] unbiased estimate of |G|^2, G the gradient's expectation; below 0 where noise exceeds it
    0 on average: gradient steps are noise
noise_trace [none] unbiased estimate of the trace of the covariance of one prompt's gradient
    growing: prompts pull in different directions; more prompts or samples
outcome/correct [fraction] rows that are correct
    see accuracy
outcome/crashed [fraction] rows on which the verifier or the world failed; they do not count
    above 0: an error in the verifier or its memory limit
outcome/timed_out [fraction] rows whose verdict took too long; they do not count
    above 0.01: raise config.verifier.timeout
outcome/unjudged [fraction] rows whose reward does not say whether they are correct
    above 0: they count as not correct; set verifier.threshold
outcome/unparseable [fraction] rows in which the verifier found no answer
    near 1: the format is not learned, or rows are truncated
outcome/wrong [fraction] rows with an answer that is not correct
    see accuracy
outside [fraction] tokens whose return is outside the range of the critic's bins, and counts as its end
    above 0: widen the range
own/* [its own] a metric of a piece outside this package: see the docstring of the piece
    see there
preferred [fraction] pairs whose better row the policy prefers more than the reference does
    below 0.5: preferences are not learned
ranked [fraction] pairs of a group that the reward model ranks as the verifier does, averaged over all rows
    at most the share of rows whose group has a pair; below half of that: nothing is learned
proximal_kl [nats] k3 of the ratio: KL between the ratio's anchor and the policy
    above 0.1: the policy moves far within one rollout
ratio [ratio] importance ratio of the tokens, mean
    far from 1: the rows are off-policy; 1 always: clips and masks on it have no effect
reward [reward] reward of the valid rows after shaping, mean
    flat: nothing is learned; rising while accuracy falls: the reward is exploited
reward/* [reward] one part of the verdict or of the shaping, mean over the valid rows
    a part that rises alone: it is exploited
reward/domain/* [reward] reward on the prompts of one domain, if the task has 2 to 32, mean over the valid rows
    far below the others: see accuracy/domain
reward_std [reward] standard deviation of the rewards of a step
    0: all rewards are equal and advantages are 0
sampler_gap [nats] mean |log-prob when scored - log-prob when sampled|
    above 0.05: sampler and trainer disagree; use float32, or weight.truncated_importance()
share/domain/* [fraction] valid rows of one domain, if the task has 2 to 32
    0: the domain was not drawn, and its accuracy and reward are given as 0
skipped [steps] gradient steps that were skipped because they were not finite
    above 0 repeatedly: lower the learning rate, look for infinite rewards
slot_utilisation [fraction] decoded positions that hold a token of a row
    near 0: rows end at very different lengths; set config.sampler.compact
squared_log_ratio [nats^2] squared distance to the sampler's log-prob
    growing: updates are too large
truncated [fraction] rows that reached the length limit; in a world, whose episode ended by a budget of turns or tokens
    near 1: answers are cut off; raise completion_length, or the turns of the world
turns [none] turns of an episode of a world, those of all its players together, mean
    1: episodes end at once; at the most there may be: episodes are cut
valid_rows [rows] rows that count
    0: nothing is learned; far below the batch: dynamic() fills up, or the verifier fails
value/* [as named] the metric after the slash, of the critic's objective
    see there
value_2/* [as named] the metric after the slash, of the second critic's objective
    see there
weight [ratio] product of weights, mean over tokens; 0 where a mask drops a token
    near 0: nearly all tokens are dropped
""")

TIMINGS = _entries("""
checkpoint [s] until the background write of a checkpoint has started
    large: slow storage
dispatch [s] the call of a step, with compilation the first time
    large after the first step: compilation
evaluation [s] evaluations
    large: fewer prompts or samples, or a larger every
log [s] writing logs
    large: slow storage
rollout [s] host tasks: decoding, and reading completions
    most of the step: decode less or shard more
seconds [s] wall time of a step, mean over the steps of a flush
    rising: completions grow, or other work
tokens_per_second [tokens/s] completion tokens written in a second
    falling: see dispatch, verify, wait
update [s] host tasks: waiting for the previous update
    most of the step: the update is the bottleneck
verify [s] host tasks: waiting for verdicts while devices are idle
    above 0.1 of seconds: more workers
wait [s] waiting for the devices when metrics are fetched
    small: the host is the bottleneck
""")

EVALUATIONS = _entries("""
pass_at_* [fraction] probability that one of k samples is correct, unbiased
    falls at large k: diversity is lost
greedy [fraction] prompts answered correctly at temperature 0
    below pass_at_1: the most probable answer is worse
unjudged [fraction] samples whose reward does not say whether they are correct
    above 0: they count as not correct; set verifier.threshold
length [tokens] mean length of the completions, end-of-sequence included; in a world, what all seats write in an episode
    at the limit of the task: answers are truncated
world/success [fraction] episodes of a world that end with a correct outcome of seat 0
    equal to that of a scripted or random player: nothing is learned
world/turns [none] turns of a valid episode, those of all seats together, mean
    at the most there may be: episodes are cut
world/truncated [fraction] valid episodes that a budget of turns or tokens has ended
    near 1: the world never ends an episode
world/invalid [fraction] episodes whose world failed; they count as no success
    above 0: look at the world's code
world/part/* [as named] a part of the verdict of seat 0 at the end of a valid episode, mean
    see the world
world/nashconv [chips] in Kuhn poker, what both players could gain by a best response to the policy's legal moves
    far above 0: the policy can be exploited; 11/12 is that of uniform play
""")


def lookup(name: str, entries: tuple[Entry, ...] = METRICS) -> Entry | None:
    """Return the entry of a name, or that of the longest pattern that fits it; None if there is none."""
    module, slash, rest = name.partition("/")
    if slash and module in ("value", "value_2"):
        return lookup(rest, entries)
    fits = [e for e in entries if name == e.name or (e.name.endswith("*") and name.startswith(e.name[:-1]))]
    return max(fits, key=lambda e: len(e.name), default=None)


def show(console: rich.console.Console | None = None) -> None:
    """Print the glossary."""
    console = console or terminal.console()
    titles = (("metrics.jsonl, every step", METRICS), ("timings.jsonl", TIMINGS), ("evaluations.jsonl", EVALUATIONS))
    for title, entries in titles:
        terminal.show(console, Entry._fields, entries, title=title, left=len(Entry._fields))
