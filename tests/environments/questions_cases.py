"""What the tests of questions share."""

import json
from typing import Any

from rljax import environments
from rljax.language import parse

ROWS = [
    {"question": f"What is {i} + 1?", "answer": i + 1, "level": i % 3, "meta": {"kind": ["sum"]}} for i in range(60)
]

MODULE = """
    import os, pathlib, signal, time

    def right(completion, reference):
        return float(completion == str(reference))

    def brief(completion):
        return {"reward": 1 / (1 + len(completion)), "length": len(completion)}

    def strict(completion, reference):
        right = completion == str(reference)
        return {"reward": float(right), "outcome": "correct" if right else "wrong"}

    def picky(completion, reference, *, prompt, level, style="plain"):
        return {"reward": 1.0, "level": level, "prompt": len(prompt), "plain": style == "plain"}

    def nosy(completion, reference, **row):
        return {"reward": 1.0, "columns": len(row)}

    def lacking(completion, reference, difficulty):
        return 1.0

    def ranked(completions, reference, *, prompt):
        if "die-once" in completions and not os.path.exists(prompt):
            pathlib.Path(prompt).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if "die" in completions:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in completions:
            time.sleep(600)
        if "short" in completions:
            return [1.0]
        if "raise" in completions:
            raise KeyError("no luck")
        return [sum(len(other) < len(c) for other in completions) / len(completions) for c in completions]

    def solve(question):
        return 1.0

    def all_columns(completion, answer, **row):
        return {"reward": float(completion == str(answer)), "columns": len(row)}

    def of_the_prompt(completion, prompt):
        return 1.0

    def of_a_column(completion, level):
        return 1.0

    def growing(completion, reference, *, meta):
        meta["kind"].append("seen")
        return len(meta["kind"])

    def reward(completion):
        return 1.0

    def exact(completion, reference):
        return float(completion in reference)

    class Model:
        def __init__(self, completion):
            pass

    def _hidden(completion):
        return 1.0
"""


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def task(call) -> Any:
    """Return the task of a call, as a config names it; ``my:`` is the module of reward functions."""
    call = call.replace("my:", "rewards_of_test_questions:")
    return parse.one(call, parse.Registry("task", environments.TASKS), "config.task")


def prompts(made, split):
    return [made.text(i, split) for i in range(made.size(split))]
