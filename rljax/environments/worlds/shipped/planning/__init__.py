"""Worlds of planning: a sequence of decisions, paid at the end by comparison with a plan that the program computes.

==============  ==========================================================================
``jobs.py``     ``jobs``: operations on machines, against dispatching rules
``plan.py``     ``Planned``: numbered problems of several sizes, and how a plan is paid; ``slipped``
``signals.py``  ``signals``: which of two queues has green, against fixed cycles
``tour.py``     ``tour``: visit cities, against the shortest tour
==============  ==========================================================================
"""
