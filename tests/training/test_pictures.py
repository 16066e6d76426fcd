"""Training on prompts with pictures: no layout changes an update, frozen towers, critics, resuming, bad input."""

import json
import pathlib

import jax
import numpy as np
import pytest

import rljax
from rljax import environments
from rljax.config import resolve
from rljax.data import tokenizers
from rljax.models.checkpoints import families, weights
from rljax.run import programs
from rljax.run.reports import records
from rljax.run.reports.pages import images
from tests.models import families_cases
from tests.run.reports.test_images import decoded
from tests.support import tiny
from tests.training.test_step import begun, close, mixed

FIELDS = {
    "task": "counting(pixels=16, grid=2, most=2, distractors=1, tokens=4, noise=0.3)",
    "model__vision__layers": 1,
    "model__vision__width": 16,
    "model__vision__heads": 2,
    "model__vision__hidden": 16,
    "model__vision__pixels": 16,
    "model__vision__tokens": 4,
    "learner__microbatches": 1,
    "learner__clip_norm": 0.0,
    "sampler__draw": "gumbel",
    "phase__main__optimizer": "sgd(learning_rate=0.3)",  # linear in the gradient: rounding stays as small as it is
}


def program(algorithm="grpo(kl=0.0)", **fields):
    return tiny.program(algorithm, **{**FIELDS, **fields})


def update(of, rollout=None):
    """Update once from the rollout of the plain program; return the parameters before and after, and the metrics."""
    (step,) = of.steps
    state = begun(step, of.key)
    before = jax.device_get(state.params)
    if rollout is None:
        plain = program()
        rollout = jax.device_get(mixed(plain.steps[0], begun(plain.steps[0], plain.key), plain.key))
    state, metrics = step.update(state, rollout, of.key)
    return before, jax.device_get(state.params), jax.device_get(metrics)


@pytest.mark.full
def test_an_update_reads_pictures_and_moves_the_tower_and_records_hold_the_picture_of_each_group_once():
    of = program(log__rollout_rows=8)
    before, after, metrics = update(of)
    moved = jax.tree.map(lambda x, y: float(np.abs(x - y).max()), before["policy"], after["policy"])
    assert min(jax.tree.leaves(moved["tower"])) > 0 and moved["projector"]["matrix"] > 0
    assert metrics["sampler_gap"] < 1e-5
    rows, samples = metrics["rows"], of.setups[0].samples
    assert rows.context.image.dtype == np.uint8  # what is logged are the pictures
    made = records.rollouts(of, of.setups[0], 1, rows)
    assert [bool(record.get("pictures")) for record in made] == [i % samples == 0 for i in range(2 * samples)]
    for i in range(0, len(made), samples):
        (source,) = made[i]["pictures"]
        np.testing.assert_array_equal(decoded(source), rows.context.image[i, 0])
    text = images.written(made[0]["prompt"])
    assert text.startswith("[picture]") and "\ufffc" not in text


@pytest.mark.full
@pytest.mark.parametrize(
    "fields",
    [
        {"learner__share_prompt": False},
        {"learner__lanes": 2},
        {"learner__microbatches": 4},
        {"mesh__data": 1, "mesh__fsdp": 2},
        {"model__scan": True, "model__remat": "full"},
    ],
    ids=lambda fields: "-".join(f"{k.rpartition('__')[2]}={v}" for k, v in fields.items()),
)
def test_no_layout_changes_the_update(fields):
    _, expected, _ = update(program())
    _, after, metrics = update(program(**fields))
    close(expected, after, 2e-5)
    assert metrics["sampler_gap"] < 1e-5


@pytest.mark.full
def test_a_frozen_tower_stays_and_everything_else_moves_as_with_a_trained_one():
    """Its output is computed once for the update; steps are by parameter, so the others do not notice."""
    _, trained, _ = update(program())
    before, after, metrics = update(program(model__vision__trained=False, learner__microbatches=2))
    assert tiny.equal(before["policy"]["tower_frozen"], after["policy"]["tower_frozen"])
    assert tiny.equal(before["policy"]["tower_frozen"], update(program())[0]["policy"]["tower"])  # one initial tower
    close(
        {name: x for name, x in after["policy"].items() if name != "tower_frozen"},
        {name: x for name, x in trained["policy"].items() if name != "tower"},
        2e-5,
    )
    assert metrics["sampler_gap"] < 1e-5 and metrics["rows"].context.image.dtype == np.uint8


@pytest.mark.full
def test_the_tower_may_have_an_optimizer_of_its_own():
    _, plain, _ = update(program())
    before, after, _ = update(program(phase__main__tower_optimizer="sgd(learning_rate=0.0)"))
    for name, x in after["policy"].items():
        still = name in ("tower", "projector")
        assert tiny.equal(before["policy"][name], x) == still
        if not still:
            close(plain["policy"][name], x, 2e-5)
    with pytest.raises(ValueError, match=r"config.phase.main.tower_optimizer: unknown name 'adamx'"):
        resolve.run(tiny.config(**FIELDS, phase__main__tower_optimizer="adamx()"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [
        ("ppo()", {}),
        ("bradley_terry()", {}),
        ("grpo(kl=0.1)", {}),
        ("dapo()", {}),
        ("grpo(kl=0.0)", {"seam__source": "ghpo()"}),
    ],
)
def test_critics_rewards_references_and_second_passes_see(algorithm, fields):
    of = program(algorithm, **fields)
    (step,) = of.steps
    state, metrics = step.fused(begun(step, of.key), of.key)
    assert metrics["skipped_in_row"] == 0 and all(
        np.isfinite(x).all() for x in jax.tree.leaves(jax.device_get(state.params))
    )


@pytest.mark.full
def test_rows_written_over_several_steps_keep_their_pictures():
    config = tiny.config("grpo(kl=0.0)", **FIELDS, mesh__data=1, seam__source="partial(segment=1)")
    of = programs.build(config, devices=jax.devices()[:1])
    (step,) = of.steps
    state, gaps = begun(step, of.key), []
    for _ in range(3):
        state, metrics = step.fused(state, of.key)
        gaps.append(float(metrics["sampler_gap"]))
    assert gaps[0] < 1e-5 and int(state.step) == 3


@pytest.mark.full
def test_a_run_with_pictures_resumes_bit_for_bit(tmp_path):
    config = tiny.phases("grpo(kl=0.0)", **FIELDS)
    whole = rljax.train(config, tmp_path / "whole")
    with config.unlocked():
        config.phase.main.steps = 1
    rljax.train(config, tmp_path / "cut")
    with config.unlocked():
        config.phase.main.steps = 2
    resumed = rljax.train(config, tmp_path / "cut", allow_config_change=("phase.main.steps",))
    assert tiny.equal(whole.state.params, resumed.state.params)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"model__vision__layers": 0},
            r"config.task .phase 'main'.: the prompts of 'counting' have pictures.*layers=0",
        ),
        ({"model__vision__tokens": 16}, r"have pictures of 4 tokens: config.model.vision.tokens reads 16"),
        ({"model__vision__pixels": 32}, r"pictures of \(16, 16\) pixels: config.model.vision.pixels reads \(32, 32\)"),
        ({"task": "arithmetic()"}, r"config.model.vision.layers=1: no phase has a task with pictures"),
    ],
)
def test_pictures_that_a_policy_cannot_read_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.run(tiny.config(**{**FIELDS, **fields}))


@pytest.mark.full
def test_the_configs_of_pictures():
    from configs import pictures

    names = [*pictures.TASKS, *(f"{name}_twin" for name in pictures.TASKS if name != "maze"), "infi_mmr", "quick"]
    for name in names:
        resolved = resolve.run(pictures.get_config(name))
        assert (resolved.phases[-1].task.pictures is None) == name.endswith("_twin")
    shown = [phase.task.pictures is not None for phase in resolve.run(pictures.get_config("infi_mmr")).phases]
    assert shown == [True, False, True, True]
    with pytest.raises(ValueError, match=r"pictures:maze_twin: choose one of charts, counting, .*'infi_mmr'"):
        pictures.get_config("maze_twin")


MAZE = {**FIELDS, "task": "maze(side=4, pixels=16, tokens=4, moves=1)"}


@pytest.mark.full
def test_a_world_shows_each_turn_what_the_last_one_did():
    """In demonstrations the green walker moves by the letter that was written; rollouts read what they see."""
    shown = tiny.program("sft()", **MAZE)
    (step,) = shown.steps
    rows = jax.device_get(step.rollout(begun(step, shown.key), shown.key))
    letters = shown.tokenizer.characters()[rows.action.token[:, 0]]
    moves = {ord("N"): (-4, 0), ord("E"): (0, 4), ord("S"): (4, 0), ord("W"): (0, -4)}
    green = (rows.context.image[:, 0] == (40, 190, 70)).all(axis=-1)
    places = np.array([np.argwhere(picture).mean(axis=0) for picture in green])
    turns, checked = shown.tasks[0].max_turns, 0
    for i in range(len(rows.mask) - 1):
        if rows.valid[i + 1] and (i + 1) % turns:  # the next turn of the same episode
            np.testing.assert_allclose(places[i + 1], places[i] + moves[int(letters[i])])
            checked += 1
    assert checked > 10
    played = tiny.program("grpo(kl=0.0)", **MAZE)
    (step,) = played.steps
    _, metrics = step.fused(begun(step, played.key), played.key)
    assert metrics["sampler_gap"] < 1e-5


def test_a_world_around_one_with_pictures_is_refused():
    with pytest.raises(ValueError, match=r"a world around 'maze' hides its pictures"):
        resolve.run(tiny.config(**{**MAZE, "task": "think_longer(maze(side=4, pixels=16, tokens=4, moves=1), 'more')"}))


@pytest.mark.full
@pytest.mark.parametrize("name", ["gemma3-4b"])
def test_a_public_folder_with_a_tower_trains_on_pictures(name, tmp_path):
    """The folder decides the tower; the tokenizer's token of a picture must be the one that it names."""
    folder = pathlib.Path(families_cases.write(tmp_path / name, name))
    vision = families.read(weights.config(str(folder)))["vision"]
    sizes = {"ask": "max", "bars": 2, "highest": 5, "pixels": vision["pixels"], "tokens": vision["tokens"]}
    task = f"charts({', '.join(f'{key}={value!r}' for key, value in sizes.items())})"
    tokenizer = tokenizers.train(environments.lookup("charts")(**sizes).corpus())
    (folder / "tokenizer.model").write_bytes(tokenizer.serialized)
    config = tiny.config(task=task, mesh__data=1, learner__microbatches=1)
    config.model = rljax.default_config().model
    config.model.weights = str(folder)
    with pytest.raises(ValueError, match=r"vision.placeholder=39 .*: must be \d+, the token of a picture"):
        programs.build(config, devices=jax.devices()[:1])
    described = json.loads((folder / "config.json").read_text())
    described["image_token_index"] = tokenizers.placeholder(tokenizer)
    (folder / "config.json").write_text(json.dumps(described))
    of = programs.build(config, devices=jax.devices()[:1])
    (step,) = of.steps
    state = begun(step, of.key)
    state = state.replace(params={**state.params, **of.initial()})
    _, metrics = step.fused(state, of.key)
    assert metrics["sampler_gap"] < 1e-5 and metrics["skipped"] == 0
