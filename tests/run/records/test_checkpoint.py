"""Checkpoints are restored bit for bit, on any mesh, after any fault and any kill."""

import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import types
from rljax.run.records import checkpoints, digests

# Tensorstore's threads may still call back an event loop that orbax closed after the first error.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

NAN_BITS = 0x7FC12345  # a NaN with a payload, which only a copy of the bits preserves


def make_state(step, rows=8):
    """Return a small state with every kind of leaf and container; params[...]["w"][i, j] = step + i + j / 4."""
    w = step + jnp.arange(rows, dtype=jnp.float32)[:, None] + jnp.arange(4, dtype=jnp.float32)[None, :] / 4
    nan = jax.lax.bitcast_convert_type(jnp.array([NAN_BITS, 0x80000000], jnp.uint32), jnp.float32)  # and -0.0
    params = {"policy": {"w": w, "scale": jnp.full((3,), step, jnp.bfloat16)}, "value": {"nan": nan}}
    return types.TrainState(
        step=jnp.int32(step),
        cursor=jnp.int32(10 * step),
        params=params,
        opt_state=(optax.chain(optax.clip(1.0), optax.adam(1e-3)).init(params), ()),
        algorithm=((), {"ema": jnp.float32(0.5), "none": None}, (jnp.array([True, False]),)),
        reference=None,
        pool={
            "noise": jax.random.bits(jax.random.key(step), (64, 64)),
            "token": jnp.arange(6, dtype=jnp.int32).reshape(2, 3),
            "empty": jnp.zeros((0, 5), jnp.int32),
        },
        skipped=jnp.int32(0),
        skipped_total=jnp.int32(2),
    )


def abstract(state, sharding=None):
    def one(leaf):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding(leaf) if sharding else None)

    return jax.tree.map(one, state)


def same(left, right):
    """Assert equal structure, types and bits."""
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def write(directory, steps, **options):
    with checkpoints.Checkpointer(directory, **{"max_to_keep": 9, **options}) as saver:
        for step in steps:
            saver.save(step, make_state(step), {"step": step})


def listing(directory):
    files = pathlib.Path(directory).rglob("*")
    return {str(f): (f.stat().st_mtime_ns, f.read_bytes() if f.is_file() else b"") for f in files}


def test_the_state_is_restored_bit_for_bit_in_its_structure(tmp_path):
    state, extras = make_state(3), {"config": {"a": [1, 2.5, None]}, "tokenizer": "AAE="}
    with checkpoints.Checkpointer(tmp_path / "run", max_to_keep=2) as saver:
        assert saver.latest_step() is None
        assert saver.save(3, state, extras)
        saver.wait()
        assert saver.all_steps() == [3]
    reader = checkpoints.Checkpointer(tmp_path / "run")
    restored, restored_extras, step = reader.restore(abstract(state))
    same(restored, state)
    assert (restored_extras, step) == (extras, 3)
    assert isinstance(restored.opt_state[0][1][0], optax.ScaleByAdamState)
    assert reader.read_extras() == extras
    params, restored_extras, step = reader.restore_params(abstract({"policy": state.params["policy"]}))
    same(params, {"policy": state.params["policy"]})
    assert (restored_extras, step) == (extras, 3)


def test_a_relative_directory_is_accepted(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("run", [1])
    assert checkpoints.Checkpointer(tmp_path / "run").all_steps() == [1]


def test_the_state_may_be_donated_once_save_returns(tmp_path):
    double = jax.jit(lambda s: jax.tree.map(lambda x: x + x, s), donate_argnums=0)
    state = {"w": jnp.arange(200_000, dtype=jnp.float32)}
    with checkpoints.Checkpointer(tmp_path, max_to_keep=9) as saver:
        for step in (1, 2, 3):  # after k doublings the state is 2^k i
            state = double(state)
            saver.save(step, state, {})
        state = double(state)
    like = {"w": jax.ShapeDtypeStruct((200_000,), jnp.float32)}
    for step in (1, 2, 3):
        restored, _, _ = checkpoints.Checkpointer(tmp_path).restore(like, step)
        np.testing.assert_array_equal(np.asarray(restored["w"]), np.arange(200_000, dtype=np.float32) * 2**step)


def test_a_state_is_restored_on_eight_devices_and_back_on_one(tmp_path):
    assert jax.device_count() == 8
    mesh = jax.make_mesh((8,), ("fsdp",), axis_types=(jax.sharding.AxisType.Auto,))

    def sharded(leaf):
        split = leaf.ndim and leaf.shape[0] and leaf.shape[0] % 8 == 0
        return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*(("fsdp",) if split else ())))

    state = make_state(1)
    with checkpoints.Checkpointer(tmp_path / "one") as saver:
        saver.save(1, state, {})
    like = abstract(state, sharded).replace(step=jax.ShapeDtypeStruct((), jnp.int32))
    wide, _, _ = checkpoints.Checkpointer(tmp_path / "one").restore(like)
    assert len(wide.params["policy"]["w"].sharding.device_set) == 8
    assert wide.params["policy"]["w"].addressable_shards[0].data.shape == (1, 4)
    same(wide, state)
    assert len(wide.step.sharding.device_set) == 8  # a leaf without sharding is replicated on the same mesh
    with checkpoints.Checkpointer(tmp_path / "eight") as saver:
        saver.save(2, wide, {})
    back, _, _ = checkpoints.Checkpointer(tmp_path / "eight").restore(abstract(state))
    assert len(back.params["policy"]["w"].sharding.device_set) == 1
    same(back, state)


def test_keeps_the_newest_and_the_best(tmp_path):
    accuracy = {2: 0.5, 3: 0.9, 5: 0.9, 6: 0.1, 8: float("nan")}  # of two equals, the later is the best
    for steps in ((1, 2, 3, 4), (5, 6, 7, 8)):  # the second writer must read the first one's scores
        with checkpoints.Checkpointer(tmp_path, max_to_keep=2) as saver:
            if saver.all_steps():
                saver.restore(abstract(make_state(4)))
            for step in steps:
                metrics = {"accuracy": accuracy[step]} if step in accuracy else None
                assert saver.save(step, make_state(step), {}, metrics=metrics)
        expected = [3, 4] if steps[0] == 1 else [5, 7, 8]
        assert checkpoints.Checkpointer(tmp_path).all_steps() == expected
    assert checkpoints.Checkpointer(tmp_path).best_step() == 5


def test_best_survives_a_restart(tmp_path):
    with checkpoints.Checkpointer(tmp_path, max_to_keep=1) as saver:
        saver.save(1, make_state(1), {}, metrics={"accuracy": 0.7})
        saver.save(2, make_state(2), {}, metrics={"accuracy": 0.3})
    with checkpoints.Checkpointer(tmp_path, max_to_keep=1) as saver:
        saver.restore(abstract(make_state(2)))
        for step in (3, 4):
            saver.save(step, make_state(step), {}, metrics={"accuracy": 0.2})
    assert checkpoints.Checkpointer(tmp_path).all_steps() == [1, 4]


def test_a_second_save_of_a_step_does_nothing(tmp_path):
    with checkpoints.Checkpointer(tmp_path, max_to_keep=9) as saver:
        assert [saver.save(step, make_state(step), {}) for step in (2, 3, 3)] == [True, True, False]
        saver.wait()
        assert saver.all_steps() == [2, 3]


def largest_array_file(step_directory):
    """Return the file with the noise of ``make_state``, which does not compress."""
    return max((step_directory / "state").rglob("d/*"), key=lambda file: file.stat().st_size)


def flip_a_bit(step_directory):
    file = largest_array_file(step_directory)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


def truncate_arrays(step_directory):
    file = largest_array_file(step_directory)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def delete_arrays(step_directory):
    largest_array_file(step_directory).unlink()


def delete_manifest(step_directory):
    (step_directory / "state" / "manifest.ocdbt").unlink()


def delete_record(step_directory):
    shutil.rmtree(step_directory / "record")


def change_record(step_directory):
    file = step_directory / "record" / "metadata"
    file.write_text(file.read_text().replace("float32", "float16"))


def empty_it(step_directory):
    for item in step_directory.iterdir():
        shutil.rmtree(item) if item.is_dir() else item.unlink()


FAULTS = [
    flip_a_bit,
    truncate_arrays,
    delete_arrays,
    delete_manifest,
    delete_record,
    change_record,
    empty_it,
]


@pytest.mark.default_tier(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_corrupt_newest_checkpoint_is_skipped_with_a_warning_and_replaced(tmp_path, fault):
    write(tmp_path, [10, 20, 30])
    fault(tmp_path / "30")
    damaged = sorted(path.name for path in (tmp_path / "30").rglob("*"))
    with checkpoints.Checkpointer(tmp_path, max_to_keep=2) as saver:
        with pytest.warns(checkpoints.CheckpointWarning) as caught:
            state, extras, step = saver.restore(abstract(make_state(0)))
        (text,) = (str(each.message) for each in caught if each.category is checkpoints.CheckpointWarning)
        assert "step 30" in text and "step 20" in text and "\n" not in text
        same(state, make_state(20))
        assert (extras, step) == ({"step": 20}, 20)
        assert saver.all_steps() == [10, 20, 30]  # nothing is renamed before the next save
        saver.save(25, make_state(25), {"step": 25})
        saver.save(30, make_state(30), {"step": 30})
    assert sorted(path.name for path in (tmp_path / "corrupt-30").rglob("*")) == damaged
    reader = checkpoints.Checkpointer(tmp_path)
    assert reader.all_steps() == [25, 30]
    same(reader.restore(abstract(make_state(0)))[0], make_state(30))


@pytest.mark.full
def test_a_step_corrupted_twice_is_renamed_twice(tmp_path):
    for _ in range(2):
        with checkpoints.Checkpointer(tmp_path, max_to_keep=9) as saver:
            if saver.all_steps():
                flip_a_bit(tmp_path / "2")
                with pytest.warns(checkpoints.CheckpointWarning):
                    saver.restore(abstract(make_state(0)))
            else:
                saver.save(1, make_state(1), {})
            saver.save(2, make_state(2), {})
    flip_a_bit(tmp_path / "2")
    with checkpoints.Checkpointer(tmp_path, max_to_keep=9) as saver:
        with pytest.warns(checkpoints.CheckpointWarning):
            saver.restore(abstract(make_state(0)))
        saver.save(2, make_state(2), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "corrupt-2", "corrupt-2-again"]


def test_restoring_an_older_step_renames_the_newer_ones(tmp_path):
    write(tmp_path, [1, 2, 3])
    with checkpoints.Checkpointer(tmp_path, max_to_keep=2) as saver:
        assert saver.restore(abstract(make_state(0)), step=1)[2] == 1
        saver.save(2, make_state(2), {"again": True})
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["1", "2", "superseded-2", "superseded-3"]
    assert checkpoints.Checkpointer(tmp_path).read_extras() == {"again": True}


@pytest.mark.full
def test_an_error_lists_the_unreadable_checkpoints_and_deletes_nothing(tmp_path):
    write(tmp_path, [1, 2])
    flip_a_bit(tmp_path / "1")
    delete_record(tmp_path / "2")
    files = listing(tmp_path)
    with pytest.raises(checkpoints.CheckpointError, match=r"(?s)nothing was deleted.*step 2: .*step 1: .*digest"):
        checkpoints.Checkpointer(tmp_path).restore(abstract(make_state(0)))
    with pytest.raises(checkpoints.CheckpointError, match="step 2"):
        checkpoints.Checkpointer(tmp_path).read_extras(2)
    with pytest.warns(checkpoints.CheckpointWarning, match=r"step 2.*step 1"):
        assert checkpoints.Checkpointer(tmp_path).read_extras() == {"step": 1}
    assert listing(tmp_path) == files


@pytest.mark.full
def test_a_requested_step_does_not_fall_back(tmp_path):
    write(tmp_path, [1, 2])
    flip_a_bit(tmp_path / "2")
    with pytest.raises(checkpoints.CheckpointError, match="step 2"):
        checkpoints.Checkpointer(tmp_path).restore(abstract(make_state(0)), step=2)
    with pytest.raises(FileNotFoundError, match=r"got 7.*\[1, 2\]"):
        checkpoints.Checkpointer(tmp_path).restore(abstract(make_state(0)), step=7)


def test_readers_create_and_delete_nothing(tmp_path):
    reader = checkpoints.Checkpointer(tmp_path / "absent")
    assert reader.all_steps() == [] and reader.latest_step() is None and reader.best_step() is None
    for read in (reader.read_extras, lambda: reader.restore(abstract(make_state(0)))):
        with pytest.raises(FileNotFoundError, match="absent"):
            read()
    reader.close()
    assert not (tmp_path / "absent").exists()
    write(tmp_path / "run", [1, 2, 3])
    (tmp_path / "run" / "4.orbax-checkpoint-tmp").mkdir()  # a save in progress in another process
    files = listing(tmp_path)
    with checkpoints.Checkpointer(tmp_path / "run", max_to_keep=1) as reader:
        reader.restore(abstract(make_state(0)))
        reader.restore_params(abstract(make_state(0).params))
        assert (reader.read_extras(), reader.all_steps(), reader.best_step()) == ({"step": 3}, [1, 2, 3], None)
    assert listing(tmp_path) == files


@pytest.mark.full
def test_like_may_depend_on_the_extras(tmp_path):
    """A run with phases has a different state in each; the extras determine it, also after a fallback."""
    with checkpoints.Checkpointer(tmp_path, max_to_keep=9) as saver:
        saver.save(1, make_state(1, rows=8), {"rows": 8})
        saver.save(2, make_state(2, rows=16), {"rows": 16})
    flip_a_bit(tmp_path / "2")
    reader = checkpoints.Checkpointer(tmp_path)
    with pytest.warns(checkpoints.CheckpointWarning, match="step 2"):
        state, _, _ = reader.restore(lambda extras: abstract(make_state(0, rows=extras["rows"])))
    same(state, make_state(1, rows=8))

    def refuse(extras):
        raise ValueError(f"config: rows was {extras['rows']}")

    with pytest.raises(ValueError, match="rows was 16"):
        reader.restore(refuse)


def test_a_different_state_is_a_mismatch_and_not_corruption(tmp_path):
    write(tmp_path, [1, 2])
    reader = checkpoints.Checkpointer(tmp_path)
    with pytest.raises(ValueError, match=r"like: .*step 2(?s:.)*params/policy/w: saved .*8, 4.*expected .*9, 4"):
        reader.restore(abstract(make_state(0, rows=9)))
    state = abstract(make_state(0))
    with pytest.raises(ValueError, match="reference: not saved"):
        reader.restore(state.replace(reference=jax.ShapeDtypeStruct((), jnp.float32)))
    with pytest.raises(ValueError, match=r"cursor: saved .*int32.* expected .*uint32"):
        reader.restore(state.replace(cursor=jax.ShapeDtypeStruct((), jnp.uint32)))
    with pytest.raises(ValueError, match=r"pool/token: saved .* not expected"):
        reader.restore(state.replace(pool={name: state.pool[name] for name in ("empty", "noise")}))


def test_bad_arguments_are_refused(tmp_path):
    with pytest.raises(ValueError, match="max_to_keep: got 0"):
        checkpoints.Checkpointer(tmp_path, max_to_keep=0)
    saver, state = checkpoints.Checkpointer(tmp_path / "run"), make_state(1)
    with pytest.raises(ValueError, match="extras: "):
        saver.save(1, state, {"tokenizer": b"raw"})
    with pytest.raises(ValueError, match=r"metrics: got \['reward'\], must include 'accuracy'"):
        saver.save(1, state, {}, metrics={"reward": 1.0})
    with pytest.raises(ValueError, match=r"state: cursor is 7"):
        saver.save(1, state.replace(cursor=7), {})
    with pytest.raises(ValueError, match=r"state: cursor is a typed key"):
        saver.save(1, state.replace(cursor=jax.random.key(0)), {})
    assert not (tmp_path / "run").exists()
    saver.save(5, state, {})
    with pytest.raises(ValueError, match="step: got 4, must be above 5"):
        saver.save(4, state, {})
    saver.close()
    with pytest.raises(ValueError, match=r"step: got 2, but .* has steps \[5\]"):
        checkpoints.Checkpointer(tmp_path / "run").save(2, state, {})


def test_the_digest_depends_on_bits_positions_and_dtype():
    """By hand: flipping a bit of any element, or exchanging two elements, changes the digest."""
    values = {
        "float32": np.array([0.0, 1.0, 2.0, 3.0], np.float32),
        "bfloat16": jnp.array([0.0, 1.0, 2.0, 3.0], jnp.bfloat16),
        "uint8": np.array([0, 1, 2, 255], np.uint8),
        "int32": np.array([[-1, 2], [3, 4]], np.int32),
        "bool": np.array([True, False]),
    }
    for name, value in values.items():
        value = np.asarray(value)
        first = digests.by_name({"x": value})
        swapped = np.ascontiguousarray(value[::-1])
        assert digests.by_name({"x": swapped}) != first, name
        for byte in range(value.nbytes if name != "bool" else 0):
            content = bytearray(value.tobytes())
            content[byte] ^= 1
            flipped = np.frombuffer(bytes(content), value.dtype).reshape(value.shape)
            assert digests.by_name({"x": flipped}) != first, (name, byte)
    zeros = digests.by_name({"x": np.zeros(2, np.float32)})
    assert digests.by_name({"x": np.array([0.0, -0.0], np.float32)}) != zeros
