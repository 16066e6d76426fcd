"""The sampler's arguments from one flat set of options."""

import dataclasses

from rljax import sampling

CONFIG = {f.name for f in dataclasses.fields(sampling.SamplerConfig)} - {"stop"}
ENDS = {f.name for f in dataclasses.fields(sampling.Ends)}


def arguments(**options):
    """Return keyword arguments of ``sampling.generate`` and ``resume``; fields of config and ends stand side by side.

    The cache has one block unless ``cache_block`` says otherwise.
    """
    config = {"cache_block": 0} | {name: options.pop(name) for name in CONFIG & set(options)}
    ends = {name: options.pop(name) for name in ENDS & set(options)}
    return {"config": sampling.SamplerConfig(**config), "ends": sampling.Ends(**ends), **options}
