"""The training step: it knows interfaces and no algorithm by name. README.md explains meshes, memory and the step.

``steps``       Compiles the functions of a step, rollout, update and both fused: ``make_step``, ``Step``.
``rollouts``    Rollouts: the next prompts, sampled or demonstrated completions, verdicts.
``updates``     The update: scores, advantages, objectives, epochs, minibatches and micro-batches.
``states``      The train state: how a phase begins, and its layout over a mesh.
``optimizers``  optax chains, an update that skips non-finite gradients, stochastic rounding of bfloat16 parameters.
``sharding``    The mesh, and the tables from logical axes to mesh axes for updates and for rollouts.
``phases``      A phase, what its step is compiled for, and scoring with that: ``Phase``, ``Setup``, ``score``.
``config``      The settings of batches, the learner, the mesh and phases.
"""
