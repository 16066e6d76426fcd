"""What stands around every piece, whatever it computes.

``contracts`` checks what pieces return, ``shapes`` has the shapes of the records, ``extras`` declares the arrays of
``Rollout.extra``, ``idle`` declares arguments without effect, ``steered`` lets a schedule stand where a piece takes a
number.
"""
