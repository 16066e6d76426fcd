"""The language of config strings, such as ``"grpo(kl=0.01)"`` and ``"clip(0.2) | dual_clip(3.0)"``.

``parse``  Parses strings into calls of registered functions, without evaluating code: ``one``, ``many``, ``setting``,
           ``with_argument``, ``lookup``, ``invoke``; names the nearest valid name in error messages: ``nearest``.

Names, types and ranges are those of the Python signatures. Every floor may import this folder; it imports none of them.
"""
