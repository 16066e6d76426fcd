"""What the tests of report share."""

import json

import numpy as np

HOSTILE = '<img src="http://x/y.png"><script>alert(1)</script>'


def write(place, steps=40, rows=8, length=12, every=10):
    """Write a work directory as a run of two phases would."""
    place.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    phases = {"warm": {"algorithm": "sft()", "steps": steps // 2}, "main": {"steps": steps - steps // 2}}
    config = {"name": HOSTILE, "algorithm": "grpo()", "task": "t()", "phases": ["warm", "main"], "phase": phases}
    (place / "config.json").write_text(json.dumps(config))
    (place / "code.json").write_text(json.dumps({"mine/pieces.py": "0123abcd"}))
    (place / "algorithm.txt").write_text("phase warm: steps 1 to 20, t(), 3 prompts x 1 samples\nsft()\n")
    names = (
        "reward",
        "accuracy",
        "entropy",
        "kl",
        "length",
        "loss",
        "loss/policy",
        "gradient_norm",
        *"abcdefghijklmnop",
    )
    logs = {name: [] for name in ("metrics", "timings", "rollouts", "evaluations", "events")}
    for step in range(1, steps + 1):
        phase = "warm" if step <= steps // 2 else "main"
        used = names if phase == "main" else ("loss", "gradient_norm")
        logs["metrics"].append({"step": step, "phase": phase, **{n: float(rng.normal()) for n in used}})
        logs["timings"].append({"step": step, "phase": phase, "seconds": 0.5, "wait": 0.4, "tokens_per_second": 9.0})
        if step % every == 0:
            tokens = {"text": ["ab "] * length, "advantage": 0.5, "ratio": rng.random(length).round(4).tolist()}
            tokens |= {name: rng.random(length).round(4).tolist() for name in ("entropy", "kl")}
            row = {"step": step, "index": 3, "group": 1, "prompt": HOSTILE, "completion": "ab " * length, "reward": 1.0}
            logs["rollouts"] += [{**row, "outcome": "correct", "tokens": tokens} for _ in range(rows)]
    ks = {str(k): [0.5, 0.4, 0.6] for k in (1, 2, 4)}
    logs["evaluations"] = [{"name": "result", "step": steps, "prompts": 3, "samples": 4, "pass_at_k": ks}]
    logs["events"] = [
        {"step": 0, "event": "start", "time": "t", "host": "h", "command": ["python", "-m", "rljax", "--config=a b"]},
        {"step": 3, "event": "warning", "text": HOSTILE},
        {"step": steps, "event": "end", "reason": "finished", "host_bytes": 2**31},
    ]
    for name, lines in logs.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


def begun(place):
    place.mkdir()
    (place / "config.json").write_text('{"name": "x", "phases": ["main"], "phase": {"main": {"steps": 5}}}')
    return place
