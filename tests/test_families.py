"""Public checkpoints: every family against transformers, in and out, and files that are not what they say."""

import functools
import json
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from rljax import models, sharding
from rljax.models import families, tensors, weights
from tests.reference import families as reference

STORED = json.loads(reference.PATH.read_text())


def folder(path, name, change=None):
    """Write a family's folder with the weights that transformers saw; ``change`` edits the tensors."""
    path.mkdir(parents=True, exist_ok=True)
    made = reference.weights(STORED[name]["tensors"])
    safetensors.numpy.save_file(made if change is None else change(made), path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(STORED[name]["config"]))
    return str(path)


def read(path, **computed):
    """Return the model and the parameters of a folder."""
    architecture = models.Architecture(**families.read(weights.config(path)), **computed)
    return models.build(architecture), weights.load(path, architecture)


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, token, mask):
    return model.logits(params, model.apply(params, token, mask))


@pytest.mark.parametrize("name", STORED)
def test_logits_are_those_of_transformers(name, tmp_path):
    model, params = read(folder(tmp_path / "in", name))
    token = jnp.asarray(reference.TOKEN)
    found = logits(model, params, token, jnp.ones(token.shape))
    assert np.abs(found[:, -4:] - np.asarray(STORED[name]["logits"])).max() < 1e-4
    # padding on the left moves nothing
    wide = jnp.pad(token, ((0, 0), (3, 0)))
    padded = logits(model, params, wide, jnp.arange(wide.shape[1])[None, :] >= 3 + jnp.zeros((2, 1)))
    np.testing.assert_allclose(padded[:, 3:], found, atol=1e-5)
