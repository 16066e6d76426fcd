"""Objects of another box: a mirror passes on what is done to it, so that two boxes can use each other's objects.

Two boxes take turns. One sends a request; the other answers it, or sends a request of its own first, such as a call of
a function that it was given:

    ["do", ACTION, [argument, ...], {name: argument}]
    ["value", value, [[place, changed argument], ...], text printed]
    ["raise", [name of the type, names of its bases], [argument of the exception, ...], exception, text printed]

Values are encoded by ``values``. The content of an object is ["here", number] for one of the sender, ["there", number
or name] for one of the receiver, ["method", number, name] for a method of an object of the sender, and ["argument",
place] for an argument of the request.

Values of builtin types, ``Decimal``, ``Fraction``, dates, deques, counters and named tuples come back to the tests as
data. Every other object of a program stays there: a mirror passes attributes, items, calls, operators, iteration,
``len``, ``str``, ``in``, ``is``, ``isinstance``, contexts and coroutines on to it. Lists, dictionaries and sets that a
function changes in place are changed in the test. Functions and objects of the test go to the program in the same way:
the program may call a function, and use the public attributes of an object whose class the test defines. What the
program prints goes to the ``sys.stdout`` of the test, and ``input()`` is the test's. Comparisons of two objects of the
program are answered by the program. What remains: a class of the test cannot inherit from a class of the program; a
list that an object keeps is a copy in the test; a builtin name, such as ``sum``, never belongs to the program.
"""

import builtins
import collections
import copy
import functools
import operator
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.environments.verifiers.sandbox import values

_UNARY = ("abs", "neg", "pos", "invert", "index")
_BINARY = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift")
_COMPARED = ("eq", "ne", "lt", "le", "gt", "ge")
_INPLACE = tuple(f"i{name.strip('_')}" for name in _BINARY)
_ITEMS = ("getitem", "setitem", "delitem")
_CONVERTED = ("len", "str", "repr", "bool", "int", "float", "complex", "iter", "reversed", "hash")
_OF_BUILTINS = (*_CONVERTED, "format", "round", "divmod", "type", "isinstance", "issubclass")
_ATTRIBUTES = ("getattr", "setattr", "delattr", "method")
_CHANGEABLE = (list, dict, set, tuple, bytearray, collections.deque)
_NAMES = ("__name__", "__qualname__", "__doc__")


def _advance(iterator: Any) -> tuple[bool, Any]:
    try:
        return True, next(iterator)
    except StopIteration:
        return False, None


@functools.cache
def _loop() -> Any:
    import asyncio  # slow, and few programs need it

    return asyncio.new_event_loop()


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


_ACTIONS: dict[str, Callable[..., Any]] = {
    "read": lambda value: value,
    "call": _call,
    "make": _call,
    "method": lambda value, name, *args, **kwargs: getattr(value, name)(*args, **kwargs),
    "advance": _advance,
    "await": lambda coroutine: _loop().run_until_complete(coroutine),
    "input": lambda *prompt: input(*prompt),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    **{name: getattr(builtins, name) for name in (*_OF_BUILTINS, "getattr", "setattr", "delattr")},
    **{
        name: getattr(operator, name) for name in (*_UNARY, *_BINARY, *_INPLACE, *_COMPARED, *_ITEMS, "contains", "is_")
    },
}
_KEPT_OPEN = {*_UNARY, *_BINARY, *_INPLACE}


class Mirror:
    """An object of the other box.

    Unless it is open, it is equal to no data and has no operators with data: an operator of the program would take the
    place of the number or text that a test expects. Open are the objects that tests make of a capitalized name which
    they use as a class, and the results of operators on them.
    """

    __slots__ = ("_mirror_ask", "_mirror_methods", "_mirror_of", "_mirror_open")

    def __init__(self, ask: Callable[..., Any], of: int | str, opened: bool):
        """Take the function that sends requests, the number or name of the object, and whether it is open."""
        for name, value in zip(Mirror.__slots__, (ask, {}, of, opened), strict=True):
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        """Return an attribute."""
        if name in self._mirror_methods:
            return self._mirror_methods[name]
        value = self._mirror_ask("getattr", self, name)
        if isinstance(value, functools.partial):
            self._mirror_methods[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute."""
        self._mirror_methods.pop(name, None)
        self._mirror_ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        """Delete an attribute."""
        self._mirror_ask("delattr", self, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it; what has a name and is open is a class, which makes an open object."""
        made = isinstance(self._mirror_of, str) and self._mirror_open
        return self._mirror_ask("make" if made else "call", self, *args, **kwargs)

    def __next__(self) -> Any:
        """Return the next item."""
        more, value = self._mirror_ask("advance", self)
        if not more:
            raise StopIteration
        return value

    def __contains__(self, item: Any) -> bool:
        """Return whether it contains an item."""
        if self._mirror_open or isinstance(item, Mirror):
            return self._mirror_ask("contains", self, item)
        return any(each is item or each == item for each in self)

    def __enter__(self) -> Any:
        """Enter it as a context."""
        return self._mirror_ask("method", self, "__enter__")

    def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
        """Leave it as a context; the type of an error is passed on if it is builtin."""
        kind = kind if kind is None or kind.__module__ == "builtins" else Exception
        return self._mirror_ask("method", self, "__exit__", kind, None, None)

    def __format__(self, form: str) -> str:
        """Return it in a format."""
        return self._mirror_ask("format", self, form)

    def __round__(self, *digits: int) -> Any:
        """Return it rounded."""
        return self._mirror_ask("round", self, *digits)

    def __instancecheck__(self, value: Any) -> bool:
        """Return whether an object of the same box is an instance of it; data are not."""
        return isinstance(value, Mirror) and self._mirror_ask("isinstance", value, self)

    def __subclasscheck__(self, value: Any) -> bool:
        """Return whether a class of the same box is a subclass of it."""
        return isinstance(value, Mirror) and self._mirror_ask("issubclass", value, self)

    def __copy__(self) -> Any:
        """Return a copy, in the same box."""
        return self._mirror_ask("copy", self)

    def __deepcopy__(self, _: Any) -> Any:
        """Return a deep copy, in the same box."""
        return self._mirror_ask("deepcopy", self)


def _passed(action: str) -> Callable[..., Any]:
    return lambda self, *args: self._mirror_ask(action, self, *args)


def _operator(action: str, reflected: bool = False) -> Callable[..., Any]:
    def apply(self: Any, other: Any) -> Any:
        if not (self._mirror_open or isinstance(other, Mirror)):
            return NotImplemented
        return self._mirror_ask(action, other, self) if reflected else self._mirror_ask(action, self, other)

    return apply


for _name in (*_UNARY, *_ITEMS, *_CONVERTED):
    setattr(Mirror, f"__{_name}__", _passed(_name))
for _name in (*_BINARY, *_INPLACE, *_COMPARED, "divmod"):
    setattr(Mirror, f"__{_name.strip('_')}__", _operator(_name))
for _name in _BINARY:
    setattr(Mirror, f"__r{_name.strip('_')}__", _operator(_name, reflected=True))


def same(one: Any, two: Any) -> bool:
    """Return whether two values are one object."""
    if isinstance(one, Mirror) and isinstance(two, Mirror):
        return one is two or one._mirror_ask("is_", one, two)
    return one is two


def kind(value: Any) -> Any:
    """Return the class of a value, in its box."""
    return value._mirror_ask("type", value) if isinstance(value, Mirror) else type(value)


class Peer:
    """One of two boxes that use each other's objects."""

    def __init__(
        self,
        transfer: Callable[[Any], Any],
        names: Mapping[str, Any],
        module: str,
        guarded: bool,
        raised: Callable[..., Exception],
        printed: Callable[[], str] = str,
    ):
        """Set up an end.

        Args:
          transfer: sends a message and returns the next one.
          names: objects of this box that the other box asks for by name.
          module: the name of the module whose classes this box makes known.
          guarded: the other box may only use objects that it was given, and of these the public attributes of instances
            of classes of ``module``.
          raised: given the names of an exception's types, its arguments and itself, returns an exception of this box.
          printed: returns what was printed since it was last called.
        """
        self._transfer, self._names, self._module, self._guarded = transfer, names, module, guarded
        self._raised, self._printed = raised, printed
        self._lock = threading.RLock()
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}  # by id; objects stay alive

    def ask(self, action: str, *args: Any, **kwargs: Any) -> Any:
        """Have the other box do something; return its value, or raise its exception."""
        sent = [self._encoded(each) for each in args]
        named = {name: self._encoded(each) for name, each in kwargs.items()}
        with self._lock:  # threads of one box
            reply = self._transfer(["do", action, sent, named])
            while reply[0] == "do":
                reply = self._transfer(self.answer(reply))
        form, first, second, *third, printed = reply
        if printed:
            sys.stdout.write(str(printed))
        opened = (
            not self._guarded
            or action == "make"
            or (action in _KEPT_OPEN and any(isinstance(x, Mirror) and x._mirror_open for x in args))
        )
        places: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        decode = functools.partial(values.decode, kept=functools.partial(self._kept, opened, places))
        if form != "value":
            raise self._raised(first, decode(second), decode(third[0]))
        for place, changed in second:
            values.update(places[place], decode(changed))
        return decode(first)

    def answer(self, request: Any) -> list[Any]:
        """Do what the other box asks for, and return the answer."""
        try:
            _, action, sent, named = request
            places: dict[Any, Any] = {**dict(enumerate(sent)), **named}
            decoded = {
                place: values.decode(data, functools.partial(self._kept, not self._guarded, {}))
                for place, data in places.items()
            }
            args = [decoded[place] for place in range(len(sent))]
            if self._guarded:
                self._check(action, sent, args)
            before = {place: self._encoded(x) for place, x in decoded.items() if isinstance(x, _CHANGEABLE)}
            value = _ACTIONS[action](*args, **{name: decoded[name] for name in named})
            after = [[place, self._encoded(decoded[place])] for place in before]
            changed = [[place, data] for place, data in after if data != before[place]]
            return ["value", self._result(action, value, decoded), changed, self._printed()]
        except Exception as error:
            names = [each.__name__ for each in type(error).__mro__]
            try:
                arguments = self._encoded(list(error.args))
            except Exception:
                arguments = ["list", [str(error)]]
            return ["raise", names, arguments, ["object", self._keep(error)], self._printed()]

    def _check(self, action: str, sent: Sequence[Any], args: Sequence[Any]) -> None:
        """Refuse what the other box may not do with objects of this one."""
        if action == "input":
            return
        if not (sent and isinstance(sent[0], list) and sent[0][0] == "object" and sent[0][1][0] == "there"):
            raise PermissionError(f"{action}: not an object that the program was given")
        if action in _ATTRIBUTES:
            public = isinstance(args[1], str) and not args[1].startswith("_")
            known = type(args[0]).__module__ in (self._module, "unittest.mock")
            if not ((public and known) or args[1] in _NAMES):
                raise AttributeError(args[1])
        elif action in ("await", "type"):
            raise PermissionError(action)

    def _result(self, action: str, value: Any, decoded: Mapping[Any, Any]) -> Any:
        if action != "read" and isinstance(value, _CHANGEABLE):
            for place, argument in decoded.items():
                if value is argument:
                    return ["object", ["argument", place]]
        if action == "make" and type(value).__module__ == self._module:
            return ["object", self._keep(value)]
        return self._encoded(value)

    def _encoded(self, value: Any) -> Any:
        return values.encode(value, self._keep)

    def _keep(self, value: Any) -> list[Any]:
        if isinstance(value, Mirror):
            return ["there", value._mirror_of]
        if isinstance(value, types.MethodType) and getattr(value.__self__, value.__name__, None) == value:
            return ["method", self._number(value.__self__), value.__name__]
        if isinstance(value, types.CoroutineType):
            return ["coroutine", self._number(value)]
        return ["here", self._number(value)]

    def _number(self, value: Any) -> int:
        if id(value) not in self._numbers:
            self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return self._numbers[id(value)]

    def _kept(self, opened: bool, places: Mapping[Any, Any], content: Any) -> Any:
        match content:
            case ["argument", place]:
                return places[place]
            case ["there", str(name)]:
                return self.named(name)
            case ["there", int(number)] if number >= 0:
                return self._objects[number]
            case ["here", int(number)]:
                return Mirror(self.ask, number, opened)
            case ["method", int(number), str(name)]:
                return functools.partial(self.ask, "method", Mirror(self.ask, number, False), name)
            case ["coroutine", int(number)]:
                return self._coroutine(Mirror(self.ask, number, False))
        raise TypeError("not an object")

    def named(self, name: str) -> Any:
        """Return an object of this box by its name; NameError."""
        if name not in self._names:
            raise NameError(f"name {name!r} is not defined")
        return self._names[name]

    async def _coroutine(self, of: Mirror) -> Any:
        return self.ask("await", of)
