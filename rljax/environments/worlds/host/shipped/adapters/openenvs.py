"""Environments that a server of OpenEnv runs (https://github.com/meta-pytorch/OpenEnv).

Worker processes load this module. It imports openenv, which takes seconds, before the time of a turn is counted.
"""

import json
from collections.abc import Mapping
from typing import Any

from openenv.core import generic_client

from rljax.environments.worlds import host
from rljax.language import messages, parse

_BESIDE = ("done", "reward", "metadata")  # fields of an observation that are not shown as text


class Remote:
    """An episode of an environment on a server, with one session; each turn of the policy is one action.

    The action has the turn, without spaces around it, in one field. An observation is read as the text of one field, or
    if that is "" as JSON of all fields but ``done``, ``reward`` and ``metadata``. An error of the server makes the
    episode invalid.

    An example is a whole number, which the environment gets as its ``seed``.
    """

    parts = ("turns",)
    cut = True

    def __init__(self, url: str, action: str, observation: str, fixed: Mapping[str, Any] | None, instruction: str):
        """Take the address; the session begins with the episode.

        Args:
          url: of the server, such as "http://localhost:8000".
          action: the field of an action that a turn is written to.
          observation: the field of an observation that the policy reads; "": all as JSON.
          fixed: other fields of every action.
          instruction: text before the first observation.
        """
        self._session = generic_client.GenericEnvClient(base_url=url).sync()
        self._action, self._observation, self._fixed = action, observation, dict(fixed or {})
        self._instruction = f"{instruction}\n" if instruction else ""

    def reset(self, example: int) -> host.Messages:
        """Begin the episode of a seed."""
        self._turns = 0
        self._session.connect()
        return self._instruction + self._text(self._session.reset(seed=int(example)).observation)

    def step(self, text: str) -> host.Observation:
        """Take the action of a turn."""
        self._turns += 1
        action = {**self._fixed, self._action: text.strip()}
        try:
            result = self._session.step(action)
        except RuntimeError as error:
            raise RuntimeError(f"an action with the fields {', '.join(action)}: {error}") from None
        parts = {"turns": float(self._turns)}
        return host.Observation(
            self._text(result.observation), float(result.reward or 0.0), done=bool(result.done), parts=parts
        )

    def close(self) -> None:
        """End the session."""
        self._session.close()

    def _text(self, observation: Mapping[str, Any]) -> str:
        if not self._observation:
            return json.dumps({k: v for k, v in observation.items() if k not in _BESIDE}, ensure_ascii=False)
        if self._observation not in observation:
            close = parse.nearest(self._observation, observation)
            raise ValueError(f"observation: the environment's has no field {messages.shown(self._observation)}.{close}")
        value = observation[self._observation]
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
