# ruff: noqa: D102 (the tests say what each method is for)
"""An environment of gymnasium for tests, with text as observations and actions; imported by worker processes."""

import gymnasium
from gymnasium import spaces


class Sum(gymnasium.Env):
    """Asks for the sum of two digits; a wrong answer is asked again."""

    observation_space = spaces.Text(16, charset="0123456789+=")
    action_space = spaces.Text(2, charset="0123456789")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.numbers = self.np_random.integers(1, 10, 2).tolist()
        return "{}+{}=".format(*self.numbers), {}

    def step(self, action):
        right = int(action) == sum(self.numbers)
        return "{}+{}=".format(*self.numbers), float(right), right, False, {}


gymnasium.register("TestSum-v0", Sum, max_episode_steps=3)
