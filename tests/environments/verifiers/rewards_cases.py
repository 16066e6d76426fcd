"""What the tests of rewards share."""

from rljax import types

# Workers import this from a file: a test module would bring jax along.
MODULE = """
    import os, pathlib, signal, subprocess, sys, time

    def judge(text, target):
        verb, _, rest = text.partition(" ")
        if verb == "number":
            return float(rest)
        if verb == "equal":
            return {"reward": float(rest == target), "length": len(rest)}
        if verb == "raise":
            raise KeyError("no such " + rest)
        if verb == "exit":
            sys.exit(3)
        if verb == "hang":
            time.sleep(600)
        if verb == "brood":  # hangs in a child process
            subprocess.run(["sh", "-c", "echo $$ > " + target + "; sleep 600; :"])
        if verb == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "die-once":
            mark = pathlib.Path(target)
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return 1.0
        if verb == "sleep":
            time.sleep(float(rest))
            return 1.0
        if verb == "pid":
            return float(os.getpid())
        if verb == "return":
            return eval(rest)
        raise AssertionError(text)
"""


def outcomes(scored):
    return [types.Outcome(code).name for code in scored.outcome]
