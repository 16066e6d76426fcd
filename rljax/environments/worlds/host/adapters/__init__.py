"""Environments of other libraries as host worlds. Each needs its package, an extra of the installation.

=====================  ==============================================================================================
``constructors.py``    the constructors that a config names: ``gymnasium``, ``mcp``
``text_envs.py``       ``Environment``: an environment of gymnasium whose observations and actions are text
``servers.py``         ``ServedTools``: questions that are answered with the tools of an MCP server
=====================  ==============================================================================================

Worker processes import ``text_envs`` and ``servers``, so these do not import jax; they import the other library when an
instance is made.
"""
