"""Control: worlds of numbers, in which a policy acts at every step of time.

A problem is a system with its physics and its first state, drawn from the index; an episode lasts until the system ends
it, or for ``horizon`` steps. Rules are pure and written for one episode; whoever runs them applies ``vmap``:

    begin(index, split) -> state           the problem
    observe(state) -> [O]                  what the policy sees
    step(state, action, key) -> state, Moved

``of(rules)`` makes a task of them. Its splits, domains and indices are those of any task, so that curricula, memories
by prompt, members and evaluations apply to it. A row of a batch is a trajectory, or a part of one; a position is an
action (``rljax.training.producers.acting``). Where rules have an expert, ``sft()`` imitates it.

=================  ====================================================================================
``rules.py``       ``Rules``, the protocol; ``Discrete`` and ``Box``, actions; ``Moved``
``task.py``        ``ControlTask``: rules as a task; its constructor, ``of``
``drawn.py``       ``Drawn``: rules whose problems are drawn at random from the index
``packaged.py``    ``Packaged``: rules that are an environment of another package
``shipped/``       worlds that ship: ``lqr``, ``pendulum``, ``cartpole``, ``acrobot``, ``mountain_car``, ``point_maze``,
                   ``quadrotor``, ``modes``, ``brax``, ``gymnax``
=================  ====================================================================================
"""

from rljax.environments.control.rules import Actions, Box, Discrete, Moved, Rules
from rljax.environments.control.task import ControlTask, of

__all__ = ["Actions", "Box", "ControlTask", "Discrete", "Moved", "Rules", "of"]
