"""XLA flags of tests: programs compile quickly, without care for their speed, and collectives run in one order."""

import os
import subprocess
import sys

_WANTED = (
    # Without optimization, and with the older emitters of fused loops, a program compiles in a third of the time.
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
    # Else virtual devices may start independent collectives in different orders and wait for one another: XLA aborts
    # the process after 40 s. Rollouts of resident weights over eight devices did so in one run of ten.
    "--xla_cpu_enable_concurrency_optimized_scheduler=false",
)
_STORED = "TESTS_XLA_FLAGS"  # the processes that a test run starts need not ask again


def known(flags: tuple[str, ...]) -> list[str]:
    """Return the flags that the installed XLA knows: it ends a process whose XLA_FLAGS has another one."""

    def starts(flags: tuple[str, ...]) -> bool:
        start = "from jaxlib import xla_client; xla_client.make_cpu_client()"
        environment = {**os.environ, "XLA_FLAGS": " ".join(flags)}
        return not subprocess.run([sys.executable, "-c", start], env=environment, capture_output=True).returncode

    return list(flags) if starts(flags) else [flag for flag in flags if starts((flag,))]


QUICK = os.environ.get(_STORED) or " ".join(known(_WANTED))
os.environ[_STORED] = QUICK
