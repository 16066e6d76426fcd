"""The side of TRL: its GRPOTrainer from the base, with the rollouts of rljax or with its own. Needs torch and trl."""

import os
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "TRL_EXPERIMENTAL_SILENCE": "1"}
os.environ |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}  # beside other work, waiting threads must not spin

import datasets
import numpy as np
import tokenizers
import transformers
import trl

from experiments.replication import study
from rljax import types
from rljax.run import programs


def tokenizer(run: programs.Program) -> transformers.PreTrainedTokenizerFast:
    """Return the base's tokenizer, a token for each character, as transformers has them."""
    read = run.tokenizer
    special = {"<pad>": read.pad, "<s>": read.bos, "</s>": read.eos, "<unk>": read.unk}
    vocabulary = special | {read.decode([n]): n for n in range(read.vocabulary) if n not in special.values()}
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    words.decoder = tokenizers.decoders.Fuse()
    named = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, padding_side="left", **named)


class Mark(transformers.TrainerCallback):
    """Keeps the logs of each gradient step, the time at which it ended, and after a rollout's last the parameters."""

    def __init__(self, run: programs.Program, setting: study.Setting, folder: pathlib.Path, keep: bool):
        self.run, self.setting, self.folder, self.keep = run, setting, folder, keep
        self.logs: list[dict[str, float]] = []
        self.times: list[float] = []
        self.vectors: list[np.ndarray] = []

    def on_step_begin(self, args, state, control, **kwargs):
        """Keep the time of the start."""
        self.times = self.times or [time.perf_counter()]

    def on_step_end(self, args, state, control, model=None, **kwargs):
        """Keep time and parameters."""
        self.times.append(time.perf_counter())
        if self.keep and state.global_step % self.setting.epochs == 0:
            self.vectors.append(study.flat(parameters(self.run, model, self.folder)))

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Keep the logs of a gradient step."""
        if logs and "grad_norm" in logs:
            self.logs.append(dict(logs))


def parameters(run: programs.Program, model: Any, folder: pathlib.Path) -> types.Tree:
    """Return the parameters of a model of TRL as rljax has them."""
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    return study.loaded(run, str(folder))


def trainer(
    setting: study.Setting,
    run: programs.Program,
    rows: Sequence[dict[str, Any]],
    reward: Any,
    workdir: pathlib.Path,
    seed: int = 0,
    attention: str = "sdpa",
    keep: bool = False,
    rollout: Any = None,
) -> tuple[trl.GRPOTrainer, Mark]:
    """Return a trainer with the settings of rljax, and what it marks; the data set is read in its order."""
    mark = Mark(run, setting, workdir / "weights", keep)
    size = setting.prompts * study.SAMPLES
    args = trl.GRPOConfig(
        output_dir=str(workdir),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=size,
        num_generations=study.SAMPLES,
        max_completion_length=run.tasks[0].completion_length,
        model_init_kwargs={"dtype": "float32", "attn_implementation": attention},
        temperature=1.0,
        top_k=0,
        optim="adamw_torch",
        learning_rate=setting.rate,
        lr_scheduler_type="constant",
        max_steps=setting.steps * setting.epochs,
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=seed,
        **setting.theirs,
    )
    built = trl.GRPOTrainer(
        model=run.config.model.weights,
        reward_funcs=reward,
        args=args,
        train_dataset=datasets.Dataset.from_list(list(rows)),
        processing_class=tokenizer(run),
        callbacks=[mark],
        rollout_func=rollout,
    )
    return built, mark


def replay(
    setting: study.Setting,
    rollouts: Sequence[types.Rollout],
    run: programs.Program,
    workdir: pathlib.Path,
    **how: Any,
) -> tuple[list[dict[str, float]], list[np.ndarray]]:
    """Train on given rollouts; return the metrics of each, the mean over its gradient steps, and the parameters."""
    waiting = iter(rollouts)

    def given(prompts, trainer):
        r = next(waiting)
        assert r.context is not None and r.action is not None
        return {
            "prompt_ids": _real(r.context.token, r.context.mask),
            "completion_ids": _real(r.action.token, r.mask),
            "logprobs": _real(r.behaviour_logp, r.mask),
            "score": np.asarray(r.reward).tolist(),
        }

    def reward(prompts, completions, score, **kwargs):
        return score

    rows = [{"prompt": f"{n}"} for n in range(setting.steps * setting.prompts)]
    built, mark = trainer(setting, run, rows, reward, workdir, keep=True, rollout=given, **how)
    base = study.flat(parameters(run, built.model, mark.folder))
    built.train()
    names = {"loss": "loss", "kl": "kl", "clipped": "clip_ratio/region_mean", "gradient norm": "grad_norm"}
    steps = [{ours: log[theirs] for ours, theirs in names.items()} for log in mark.logs]
    parts = [steps[n : n + setting.epochs] for n in range(0, len(steps), setting.epochs)]
    return [{name: float(np.mean([s[name] for s in part])) for name in names} for part in parts], [base, *mark.vectors]


def _real(values: Any, mask: Any) -> list[list[Any]]:
    return [np.asarray(v)[np.asarray(m) > 0].tolist() for v, m in zip(values, mask, strict=True)]


def free(
    setting: study.Setting, run: programs.Program, indices: Any, judge: Any, workdir: pathlib.Path, seed: int
) -> tuple[types.Tree, list[float], list[float]]:
    """Train on the given prompts with TRL's own rollouts; return parameters, rewards and seconds of each step."""
    task = run.tasks[0]
    rows = [{"prompt": task.text(i, "train"), "index": i} for step in indices for i in step]

    def reward(completions, completion_ids, index, **kwargs):
        return judge(index, completion_ids)

    built, mark = trainer(setting, run, rows, reward, workdir, seed=seed)
    tokens = np.asarray(task.prompts(np.asarray(indices[0], np.int32), "train").token)
    read = built.processing_class([row["prompt"] for row in rows[: len(tokens)]])["input_ids"]
    assert [t[t > 0].tolist() for t in tokens] == read  # both read the same tokens
    built.train()
    return parameters(run, built.model, mark.folder), [log["reward"] for log in mark.logs], np.diff(mark.times).tolist()
