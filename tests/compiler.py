"""XLA flags for programs that run only a few times: compile quickly, without care for the speed of the result."""

# Without optimization, and with the older emitters of fused loops, a program compiles in a third of the time.
QUICK = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)
