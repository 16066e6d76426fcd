"""The host side of a run: its files, its processes and its profiles. Nothing here depends on a config or a step.

``backends``   Choose the platforms of JAX before its first use: ``start``, ``cores``.
``processes``  Start and use several processes that run one program: ``initialize``, ``leader``, ``gather``,
               ``together``, ``from_leader``, ``fetch``, ``local_rows``, ``global_rows``, ``notice``, ``lost``.
``workdirs``   The work directory of a run, local or on gs:// with its logs mirrored: ``WorkDirectory``, ``LOGS``.
``owners``     One run at a time writes to a work directory: ``Owner``.
``profiles``   Traces of chosen steps, an explanation of exhausted memory, where host time goes: ``steps``,
               ``Tracer``, ``explain_out_of_memory``, ``OutOfMemory``, ``live_arrays``, ``Clock``.
``sinks``      Where records go beside the logs of a run: TensorBoard, W&B, CSV: ``build``, ``Sink``.
``flops``      Floating-point operations of a traced function: ``count``, ``of_jaxpr``.
``memory``     The memory that a program needs and that devices have free: ``needed``, ``available``.

Modules are imported by name (``from rljax.host import processes``); this page imports none of them.
"""
