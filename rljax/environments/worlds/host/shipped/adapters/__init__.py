"""Environments of other libraries as host worlds. Each needs its package, an extra of the installation.

=====================  ==============================================================================================
``constructors.py``    the constructors that a config names: ``gymnasium``, ``mcp``, ``openenv``
``text_envs.py``       ``Environment``: an environment of gymnasium whose observations and actions are text
``servers.py``         ``ServedTools``: questions that are answered with the tools of an MCP server
``openenvs.py``        ``Remote``: an environment that a server of OpenEnv runs
=====================  ==============================================================================================

Worker processes import these files but the first, so they do not import jax. ``text_envs`` and ``servers`` import the
other library when an instance is made.
"""
