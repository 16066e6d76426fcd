"""The language of configs: strings of calls, annotations as schemas, and groups of settings.

``parse``     Parses strings such as ``"clip(0.2) | dual_clip(3.0)"`` into calls of registered functions, without
              evaluating code: ``one``, ``many``, ``setting``, ``literal``, ``with_argument``, ``lookup``, ``invoke``;
              finds the nearest valid name for error messages: ``nearest``.
``dotted``    Marks the functions that a dotted path may name, and resolves such a path: ``mark``, ``marked``, ``load``,
             ``only``; resolves the path of a reward function: ``reward``.
``errors``    Tells messages to the user from exceptions in code, which keep file and line: ``CodeError``, ``inside``.
``sources``   The source of a module that is not imported.
``reached``   Digests of the modules outside rljax that a config reaches: ``recording``, ``digests``, ``differences``.
``foreign``   Names in other libraries, with the corresponding names in rljax.
``ranges``    What arguments of pieces may be: intervals of numbers, ``Range``, and names; ``types`` gives them to all.
``limits``    The largest numbers that are taken from a user.
``fields``    What is known of a field of ``types.Scores``, in one row: ``score``.
``outline``   Short texts for records of arrays.
``hints``     Checks values against annotations, and describes what an annotation allows: ``mismatch``, ``describe``.
``messages``  Shortens and escapes user text in messages: ``shown``, ``printable``, ``escaped``.
``settings``  Groups of settings, each a frozen dataclass that is its schema: ``setting``, ``group``, ``build``.

Names, types and ranges are read from Python signatures and annotations. Every folder may import this one, which imports
only ``types``.
"""
