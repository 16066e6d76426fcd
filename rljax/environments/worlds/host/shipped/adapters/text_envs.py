"""Environments of gymnasium with text as observations and actions. Worker processes load this module."""

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rljax.environments.worlds import host
from rljax.language import messages, parse

_COLORS = ("gray", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
_COLORED = re.compile(r"\x1b\[(?:\d+;)*?[34]([0-7])(?:;\d+)*m(.*?)\x1b\[0m", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_TAGGED = re.compile(r"<action>(.*?)(?:</action>|\Z)", re.DOTALL)


class Environment:
    """An episode of an environment, in which each turn of the policy is one action.

    Observations are texts of a space ``Text``; of any other space, what ``render`` returns in the mode "ansi". Text in
    a color is written between tags, ``<red>S</red>``. Actions are texts of a space ``Text``, or actions of a space
    ``Discrete`` by their names, whose case does not matter. Spaces around an action are ignored. A turn that is no
    action is answered by what is allowed; the environment does not change, and ``invalid`` counts the turn.

    An example is a whole number, the seed of the environment.
    """

    parts = ("turns", "invalid")
    cut = True

    def __init__(
        self,
        environment: str,
        actions: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        instruction: str = "",
        tagged: bool = False,
    ):
        """Make the environment.

        Args:
          environment: its id, such as "FrozenLake-v1", or with the module that registers it, "my_module:Shop-v0".
          actions: a name for each action of a space ``Discrete``.
          settings: arguments of the environment.
          instruction: text before the first observation.
          tagged: whether the action is what the turn's last <action>...</action> holds, or the whole turn.

        Raises:
          ValueError: there is no such environment, it cannot be made, or its observations or actions are not text.
        """
        self._made, self._rendered = _make(environment, dict(settings or {}))
        self._names = _names(environment, self._made.action_space, actions)
        self._tagged = tagged
        allowed = f"one of {', '.join(self._names)}" if self._names else "an action"
        allowed += ", between <action> and </action>" if tagged else ""
        self._instruction = (f"{instruction}\n" if instruction else "") + f"Write {allowed}.\n"

    def reset(self, example: int) -> host.Messages:
        """Begin the episode of a seed."""
        self._turns = self._invalid = 0
        observation, _ = self._made.reset(seed=int(example))
        return self._instruction + self._text(observation)

    def step(self, text: str) -> host.Observation:
        """Take the action of a turn."""
        self._turns += 1
        try:
            action = self._action(text)
        except ValueError as error:
            self._invalid += 1
            return host.Observation(f"{error}\n", parts=self._counts())
        observation, reward, terminated, truncated, _ = self._made.step(action)
        return host.Observation(
            self._text(observation),
            float(reward),
            done=bool(terminated),
            truncated=bool(truncated) and not terminated,
            parts=self._counts(),
        )

    def close(self) -> None:
        """Close the environment."""
        self._made.close()

    def _counts(self) -> dict[str, float]:
        return {"turns": float(self._turns), "invalid": float(self._invalid)}

    def _action(self, text: str) -> Any:
        """Return the action of a turn; ValueError in words for the policy if it is none."""
        if self._tagged:
            if not (tags := _TAGGED.findall(text)):
                raise ValueError("Write the action between <action> and </action>.")
            text = tags[-1]
        space, text = self._made.action_space, text.strip()
        if self._names:
            if text.lower() not in self._names:
                raise ValueError(f"Write one of {', '.join(self._names)}.")
            return int(space.start) + self._names.index(text.lower())
        if not space.contains(text):
            allowed = "".join(sorted(space.character_set))
            size = f"{space.min_length} to {space.max_length} characters"
            raise ValueError(f"An action is a text of {size} from {messages.shown(allowed)}.")
        return text

    def _text(self, observation: Any) -> str:
        text = str(self._made.render() if self._rendered else observation)
        text = _COLORED.sub(lambda m: f"<{_COLORS[int(m[1])]}>{m[2]}</{_COLORS[int(m[1])]}>", text)
        return _ESCAPE.sub("", text)


def _make(name: str, settings: dict[str, Any]) -> tuple[Any, bool]:
    """Return an environment, and whether its observations are what it renders."""
    library = importlib.import_module("gymnasium")
    try:
        library.spec(name) if ":" not in name else importlib.import_module(name.partition(":")[0])
        made = library.make(name, disable_env_checker=True, **settings)
    except library.error.UnregisteredEnv:
        close = parse.nearest(name.rpartition(":")[2], library.registry).partition(" Valid:")[0]  # of many
        raise ValueError(f"gymnasium has no environment {messages.shown(name)}.{close}") from None
    except Exception as error:
        problem = messages.printable(f"{type(error).__name__}: {error}")
        raise ValueError(f"{name!r} cannot be made: {problem}") from None
    if isinstance(made.observation_space, library.spaces.Text):
        return made, False
    if "ansi" not in (made.metadata.get("render_modes") or ()):
        space = messages.printable(made.observation_space)
        made.close()
        raise ValueError(f"{name!r} has observations {space}, which are not Text, and no render mode 'ansi'")
    made.close()
    return library.make(name, disable_env_checker=True, **{**settings, "render_mode": "ansi"}), True


def _names(environment: str, space: Any, actions: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the actions, in lower case; () if they are any text."""
    spaces = importlib.import_module("gymnasium").spaces
    if isinstance(space, spaces.Text):
        if actions:
            raise ValueError(f"actions={messages.shown(actions)}: the actions of {environment!r} are any text")
        return ()
    if not isinstance(space, spaces.Discrete):
        raise ValueError(f"{environment!r} has actions {messages.printable(space)}; expected Text or Discrete")
    names = tuple(str(name).strip().lower() for name in actions)
    if len(names) != space.n or len({*names}) != len(names) or "" in names:
        raise ValueError(f"actions={messages.shown(actions)}: {environment!r} needs {space.n} different names")
    return names
