"""Mistakes in configs and rules of control worlds, refused by name before anything compiles."""

import re

import jax
import pytest

from rljax.run import programs
from tests.support import control, tiny

ONE = jax.devices()[:1]


def refused(config, message, error=ValueError):
    with pytest.raises(error, match=message):
        programs.build(config, devices=ONE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model__kind": "transformer"}, r"model.kind='transformer' .* has observations .* Set it to 'mlp'"),
        ({"model__layers": 1}, r"config.model.layers=1 .*has no effect, as the task has observations"),
        ({"model__adapter_rank": 2}, r"config.model.adapter_rank=2 .*has no effect"),
        ({"model__vision__layers": 1}, r"config.model.vision=.*has no effect"),
        ({"tokenizer__vocabulary": 300}, r"config.tokenizer.vocabulary=300 .*has no effect"),
        ({"tokenizer__kind": "bytes"}, r"config.tokenizer.kind='bytes' .*has no effect"),
        ({"model__mlp__layers": -1}, r"config.model.mlp.layers=-1"),
        ({"model__mlp__activation": "tahn"}, r"config.model.mlp.activation='tahn'.*'tanh'"),
        ({"model__mlp__squash": True}, r"config.model.mlp.squash=True .*has no effect with discrete actions"),
        ({"model__mlp__std": "output"}, r"config.model.mlp.std='output' .*has no effect with discrete actions"),
        ({"model__mlp__log_std": -1.0}, r"config.model.mlp.log_std=-1.0 .*has no effect with discrete actions"),
        ({"sampler__top_k": 5}, r"config.sampler .*top_k, top_p and min_p filter tokens"),
        ({"sampler__top_p": 0.9}, r"config.sampler .*top_k, top_p and min_p filter tokens"),
        ({"sampler__stop": ("a",)}, r"config.sampler.stop=.* is for rows of tokens"),
        ({"sampler__slots": 4}, r"config.sampler.slots=4 .*which has no tokens. Set it to 0"),
        ({"sampler__compact": 2}, r"config.sampler.compact=2 .*expected 0"),
        ({"run__lag": 1}, r"config.run.lag=1 .*is for rows of tokens"),
        ({"run__overlap": True}, r"config.run.overlap=True .*is for rows of tokens"),
        ({"mesh__rollout": 1}, r"config.mesh.rollout=1 .*is for rows of tokens"),
        ({"learner__lanes": 2, "batch__samples": 2}, r"config.learner.lanes=2 .*is for rows of tokens"),
        ({"world__players": ("policy", "snapshot")}, r"config.world.players=.*expected 'policy' alone"),
        ({"algorithm": "sft()"}, r"demonstrations\(\) imitates demonstrations, and the rules of task 'tables' have no"),
        ({"algorithm": "grpo(kl=0.1)", "model__mlp__normalise": True, "batch__samples": 2}, r"mlp.normalise=True "),
        ({"seam__source": "rethink(('0',))"}, r"rethink\(.* has a second pass, .*is a control world"),
        ({"seam__source": "stored('rows.jsonl')"}, r"stored\(.* of another kind of rows: .* is a control world"),
        ({"algorithm": "grpo(kl=0.0)", "batch__samples": 4, "seam__source": "unrolled(2)"}, r"unrolled\(.* cuts"),
        ({"algorithm": "ppo(kl=0.0)", "module__value__trunk": "policy"}, r"module.value.trunk: is for networks"),
        ({"algorithm": "ppo(kl=0.0)", "module__value__layers": 3}, r"config.module.value.layers: is for networks"),
        ({"algorithm": "gui_g1()", "batch__samples": 2}, r"reads parts\['box'\]; task 'tables' reports twos"),
    ],
)  # fmt: skip
def test_settings_that_mean_nothing_to_a_control_world_are_refused(fields, message):
    refused(control.config(**fields), message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model__kind": "mlp"}, r"config.model.kind='mlp' .* has tokens. Set it to 'transformer'"),
        ({"model__mlp__width": 8}, r"config.model.mlp.width=8 .*has no effect, as the task has tokens"),
        ({"seam__source": "unrolled(4)"}, r"source.unrolled: expected a control world; for tokens use source.partial"),
    ],
)
def test_settings_of_actors_are_refused_where_rows_are_tokens(fields, message):
    refused(tiny.config(**fields), message)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"seam__advantage": "prefix_tree()", "batch__samples": 4}, r"advantage prefix_tree\(\): .*has no action"),
        ({"algorithm": "otb()", "batch__samples": 2}, r"optimal_token_baseline: the rollout has no square_prob"),
        ({"seam__source": "partial(segment=2)"}, r"partial\(.*for a control world use source.unrolled"),
        ({"algorithm": "t_ppo()"}, r"windowed\(.*for a control world use source.unrolled"),
    ],
)
def test_pieces_that_read_tokens_are_refused_by_name(fields, message):
    refused(control.config(**fields), message)


@pytest.mark.parametrize("name", ["js", "total_variation"])
def test_divergences_that_gaussians_do_not_have_are_refused_before_the_first_step(name):
    fields = {"algorithm": "grpo(kl=0.0)", "batch__samples": 2, "seam__penalty": f"+ exact_kl({name!r}, 0.1)"}
    refused(control.config("pendulum()", **fields), rf"phase 'main', grpo.*divergence {name!r}: has no closed form")
    assert programs.build(control.config(**fields), devices=ONE)  # of actions that are counted


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("begin", "begin: KeyError: 'no problems'"),
        ("observe", "observe: observe is float32[2]: expected float32[3]"),
        ("whole", "observe: observe is int32[3]: expected float32[3]"),
        ("legal", "legal: legal is float32[2]: expected bool[2]"),
        ("legal_three", "legal: legal is bool[3]: expected bool[2]"),
        ("state", "step: the state was {'state': 'int32[]'} and became {'state': 'float32[]'}"),
        ("reward", "step: Moved.reward is float32[1]: expected float32[]"),
        ("paid", "step: Moved.reward is int32[]: expected float32[]"),
        ("done", "step: Moved.done is float32[]: expected bool[]"),
        ("parts", "step: Moved.parts has ['threes']: expected ['twos'], as Rules.parts"),
        ("box", "step: TypeError: Indexer must have integer or boolean type"),
        ("solved", "solved: solved is float32[]: expected bool[]"),
    ],
)
def test_rules_that_return_something_else_are_refused_by_function(defect, message):
    config = control.config(f"tests.support.control.tables(defect={defect!r})")
    refused(config, f"(?s)task 'tables': {re.escape(message)}")


def test_phases_with_other_observations_or_actions_are_refused():
    c = control.config(phases=("warm", "main"))
    c.phase.warm = c.phase.main.copy_and_resolve_references()
    c.phase.warm.task = "cartpole()"
    refused(c, r"config.phases: the tasks observe and do different things")
