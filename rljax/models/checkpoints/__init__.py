"""Public checkpoints in and out: folders of config.json and safetensors, as Hugging Face publishes them.

===============  ========================================================================
``families.py``  config.json and tensor names of each family of models, both directions
``keys.py``      the keys of config.json of each family; those that are harmless, or refused unless they change nothing
``rope.py``      rotary positions in config.json
``vision.py``    vision towers: their part of config.json and of the tensor names
``tensors.py``   safetensors files: index, read, write
``headers.py``   the header of a safetensors file, checked
``weights.py``   parameters from a folder onto a mesh, and from a mesh into a folder
===============  ========================================================================

``weights.load`` and ``weights.save`` are the two entry points; ``python -m rljax convert`` is the command.
"""
