"""Control worlds that ship: each a file, which nothing in the frame imports.

===================  ==========================================================================================
``acrobot.py``       ``acrobot``: swing two links up (Gymnasium's)
``brax.py``          ``brax``: the environments of Brax, an extra
``cartpole.py``      ``cartpole``: balance a pole on a cart (Gymnasium's), with physics that may be held out
``gymnax.py``        ``gymnax``: the environments of gymnax, an extra
``lqr.py``           ``lqr``: the linear quadratic regulator; its best policy and exact returns
``modes.py``         ``modes``: one action, the end of a chain, from a ring of Gaussians
``mountain_car.py``  ``mountain_car``: leave a valley with a weak motor (Gymnasium's, continuous)
``pendulum.py``      ``pendulum``: swing a pendulum up and hold it (Gymnasium's)
``point_maze.py``    ``point_maze``: push a point with momentum through the mazes of the world ``maze``
``quadrotor.py``     ``quadrotor``: fly a rigid body in three dimensions through a track of gates
===================  ==========================================================================================
"""
