"""The training step, which depends on interfaces and on no algorithm. README.md explains meshes, memory and the step.

``steps``         Compiles the functions of a step, rollout, update and both fused: ``make_step``, ``Step``.
``traces``        The programs of a step with abstract arguments, without compiling them: ``trace``, ``names``.
``producers/``    Where the rows of a step come from: completions, episodes, rows in flight, demonstrations, files.
``passes``        Completions that begin with given tokens, and the second pass of a step.
``rows``          Rows of a rollout: drawn, blank, filled by the sampler, judged by a verifier.
``problems``      The training prompts as a source sees them.
``sources``       How often the source of a step acts: ``fired``, ``unreached``.
``learning``      The update: gradients, optimizers, and the metrics of an update.
``members``       A function of a run, applied to several runs that are split over devices: ``each``.
``states``        The train state: its value at the start of a phase, and its sharding over a mesh.
``sharding``      The mesh, and the tables from logical axes to mesh axes for updates and for rollouts.
``phases``        A phase, everything that its step is compiled for, and scoring: ``Phase``, ``Setup``, ``score``.
``readings``      What a module reads in place of a row: texts and solutions behind its prompt or its end.
``checks``        A phase before anything compiles: its task and its pieces, on shapes and types alone.
``config``        The settings of batches, the learner, the mesh and phases.
"""
