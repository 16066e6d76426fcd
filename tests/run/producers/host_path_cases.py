"""The judges of the tests of tasks that workers score."""

# What the workers import. Its moods are files in $HOST_PATH_MOODS, so that equal configs can meet another world.
JUDGES = """
    import dataclasses, os, pathlib, signal, zlib
    from rljax import environments

    def judge(text, target):
        # One worker, so calls come one after another. Reference solutions, which a run tries first, do not count.
        if text.endswith(f"#### {target}"):
            return {"reward": 1.0, "format": 1.0, "wanted": float(target)}
        moods = pathlib.Path(os.environ["HOST_PATH_MOODS"])
        with (moods / "calls").open("ab") as calls:
            calls.write(b".")
            call = calls.tell()

        def late(mood):
            return (moods / mood).exists() and call > int((moods / mood).read_text())

        if late("kill"):
            supervisor = pathlib.Path(f"/proc/{os.getppid()}/stat").read_text()
            os.kill(int(supervisor.rpartition(")")[2].split()[1]), signal.SIGKILL)
        if late("stop"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if (moods / "hopeless").exists():
            return {"outcome": "crashed"}
        luck = zlib.crc32(text.encode())
        if late("raise") or ((moods / "touchy").exists() and luck % 3 == 0):
            raise KeyError("no such answer")
        if (moods / "slow").exists() and call % 2:
            return {"reward": 0.0, "outcome": "timed_out"}
        return {"reward": luck % 2, "format": 1.0, "wanted": float(target)}

    @environments.task
    def questions(path):
        from rljax.environments.questions import published
        task = published.gsm8k(path, prompt_length=24, completion_length=12)
        return dataclasses.replace(task, reward=judge, parts=("format", "wanted"))
"""
