"""The training step, which depends on interfaces and on no algorithm. README.md explains meshes, memory and the step.

``steps``         Compiles the functions of a step, rollout, update and both fused: ``make_step``, ``Step``.
``traces``        The programs of a step with abstract arguments, without compiling them: ``trace``, ``names``.
``rollouts``      Rollouts: the choice of prompts, sampled or demonstrated completions, and their verdicts.
``play``          Rollouts of a world: episodes in the compiled program, and who plays its seats.
``rows``          Rows of a rollout: blank, filled by the sampler, judged by a verifier.
``sources``       How often the source of a step acts: ``fired``, ``unreached``.
``updates``       The update: scores, advantages, objectives, epochs and minibatches.
``members``       A step of several runs in one program, split over devices: ``each``, ``Functions``.
``gradients``     The gradient of a minibatch, of one objective or of a trunk and its heads; micro-batches.
``diagnostics``   Formulas of the metrics that only runs with ``config.log.diagnostics`` compute.
``states``        The train state: its value at the start of a phase, and its sharding over a mesh.
``optimizers``    optax chains, an update that skips non-finite gradients, stochastic rounding of bfloat16 parameters.
``sharding``      The mesh, and the tables from logical axes to mesh axes for updates and for rollouts.
``phases``        A phase, everything that its step is compiled for, and scoring: ``Phase``, ``Setup``, ``score``.
``readings``      What a module reads in place of a row: texts and solutions behind its prompt or its end.
``checks``        A phase before anything compiles: its task and its pieces, on shapes and types alone.
``world_checks``  A world before anything compiles: what its functions return, on shapes and types.
``config``        The settings of batches, the learner, the mesh and phases.
"""
