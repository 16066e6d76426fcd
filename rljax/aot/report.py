"""The record of a compiled program, with measured and counted figures, and its text."""

from typing import Any

import jax

from rljax.algorithms import interpreter
from rljax.aot import collectives, compiling, hlo, live, roofline, topology, traffic
from rljax.host import memory
from rljax.models import adapters
from rljax.training import sharding, steps

Record = dict[str, Any]


def layout(step: steps.Step) -> collectives.Layout:
    """Return the mesh positions of a step's devices."""
    mesh = step.setup.mesh
    slices = tuple(map(sharding.slice_of, mesh.devices.flat))
    return collectives.Layout(mesh.axis_names, tuple(mesh.shape.values()), slices)


def describe(step: steps.Step, compiled: compiling.Compiled, target: topology.Topology) -> Record:
    """Return the record of a compiled program.

    Args:
      step: the step that the program belongs to.
      compiled: the compiled program.
      target: the topology it was compiled for.

    Returns:
      JSON-able fields; bytes, operations and seconds are for one device.
    """
    devices = step.setup.mesh.size
    # space 1 is a TPU's vector memory; on GPUs it is memory that collectives may read
    module = hlo.parse(compiled.text.replace("S(1)", "") if target.kind.gpu else compiled.text)
    assumed = compiling.blocks(step)
    sends = collectives.find(module, layout(step), assumed)
    sent = {network: collectives.sent(sends, network) for network in ("ici", "dcn")}
    moved = traffic.moved(module, assumed)
    times = roofline.times(target.kind, compiled.flops / devices, moved, sent["ici"], sent["dcn"])
    loops = [r for r in hlo.runs(module) if r.instruction.opcode == "while"]
    unknown = sum(hlo.trip_count(module, r.computation, r.instruction) is None for r in loops)
    return {
        "program": compiled.name,
        "devices": devices,
        **{name: value for name, value in vars(compiled).items() if name not in ("name", "flops", "text", "buffers")},
        "by_cause": live.causes(compiled.buffers, module, step, compiled.peak),
        "peak_rss": memory.peak(),
        "hbm": target.kind.share().hbm,
        "networks": target.kind.networks,
        "jax": jax.__version__,
        "flops": compiled.flops / devices,
        "model_flops": roofline.model_flops(step.setup, compiled.name) / devices,
        "moved": moved,
        "kernels": traffic.started(module, assumed) if target.kind.gpu else 0,
        **{f"sent_{network}": size for network, size in sent.items()},
        "collectives": [
            {"kind": k, "axes": list(axes), "network": network, "runs": runs, "sent": size}
            for (k, axes, network), (runs, size) in collectives.totals(sends).items()
        ],
        "most": _merged(sends)[:6],
        "largest": [
            {"array": str(s), "bytes": s.bytes, "op": op, "source": source}
            for s, op, source in traffic.largest(module, 6)
        ],
        "unknown_loops": unknown,
        "unread": len(hlo.unread(module)),
        "seconds": {"compute": times.compute, "memory": times.memory, "ici": times.ici, "dcn": times.dcn},
        "overlapped_s": times.overlapped,
        "serial_s": times.serial,
        "bound": times.bound,
    }


def copied(sampler: steps.Step, step: steps.Step, target: topology.Topology) -> str:
    """Return the cost of a copy of the policy to the sampler's devices, as text.

    seconds >= max(bytes that a sampler's device receives, bytes that a trainer's sends) / ICI; between slices, / DCN.

    Args:
      sampler: the step on the sampler's mesh.
      step: the step on the trainer's mesh.
      target: the topology of both.
    """
    received = sum(map(memory.held, jax.tree.leaves(adapters.trained(sampler.shape.params["policy"]))))
    ours, theirs = layout(step), layout(sampler)
    sent = received * sampler.setup.mesh.size / step.setup.mesh.size
    kind, apart = target.kind.share(), {*ours.slices} != {*theirs.slices}
    seconds = max(received, sent) / (kind.dcn if apart else kind.ici)
    return (
        f"weights to the sampler: its devices receive {size(received)}, the others send {size(sent)} each; "
        f"at least {1000 * seconds:.3g} ms over {kind.networks['dcn' if apart else 'ici']}, beside an update"
    )


def _merged(sends: list[collectives.Collective]) -> list[Record]:
    """Merge the collectives of equal arrays from the same source line; order by bytes, descending."""
    merged: dict[tuple[str, ...], Record] = {}
    for c in sends:
        operand = " ".join(map(str, c.operand[:4])) + " ..." * (len(c.operand) > 4)
        record = merged.setdefault(
            (c.kind, *c.axes, operand, c.source),
            {
                "kind": c.kind,
                "axes": list(c.axes),
                "operand": operand,
                "source": c.source or c.op,
                "runs": 0,
                "sent": 0.0,
            },
        )
        record["runs"] += c.times
        record["sent"] += c.sent
    return sorted(merged.values(), key=lambda record: -record["sent"])


def size(count: float) -> str:
    """Format a number of bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.2f} GiB"


def table(record: Record) -> str:
    """Return a program's record as text."""
    r, tera = record, 1e12
    # records of earlier pages have no names
    called = {"compute": "compute", "memory": "memory", "ici": "ICI", "dcn": "DCN", **r.get("networks", {})}
    seconds = ", ".join(f"{called[unit]} {s:.3g}" for unit, s in r["seconds"].items() if s)
    share = r["model_flops"] / r["flops"] if r["flops"] else 0.0
    held = [(cause, b) for cause, b in r.get("by_cause", {}).items() if abs(b) >= 1e-3 * r["peak"]]
    lines = [
        f"{r['program']}: traced and lowered in {r['lower_s']:.1f} s, compiled in {r['compile_s']:.1f} s "
        f"({r['compile_cpu_s']:.1f} s of CPU time); peak host memory {r['peak_rss'] / 2**30:.2f} GiB",
        f"  memory per chip    peak {size(r['peak'])} of {r['hbm'] / 2**30:.0f} GiB "
        f"({100 * r['peak'] / r['hbm']:.0f} %): arguments {size(r['arguments'])}, "
        f"temporaries {size(r['temporaries'])}, outputs {size(r['outputs'] - r['aliased'])} not in place",
        *(f"  {'' if i else 'at the peak':19s}{size(b):>10s}  {cause}" for i, (cause, b) in enumerate(held)),
        f"  work per chip      {r['flops'] / tera:.4g} TFLOPs, of which the model needs "
        f"{r['model_flops'] / tera:.4g} ({100 * share:.0f} %); {size(r['moved'])} of memory traffic",
    ]
    for c in r["collectives"]:
        axes = "+".join(c["axes"]) or "within a chip"
        network = f"{called[c['network']]:8s}{c['runs']:>8.0f} times"
        lines.append(f"  {c['kind']:19s}{axes:24s}{network} {size(c['sent']):>12s} sent")
    if r.get("kernels"):
        lines.append(f"  kernels started    {r['kernels']:,.0f}")
    if r["unread"]:
        lines.append(f"  NOT COUNTED        {r['unread']} computations, called in a way that the parser does not know")
    if not r["collectives"]:
        lines.append("  no collectives")
    lines.append(
        f"  roofline           {r['overlapped_s']:.3g} s, bound by {called[r['bound']]}, if everything overlaps; "
        f"{r['serial_s']:.3g} s if nothing overlaps ({seconds})"
    )
    arrays = [f"{size(a['bytes']):>10s}  {a['array']}  {a['source'] or a['op']}" for a in r["largest"]]
    sends = [
        f"{size(c['sent']):>10s}  {c['kind']} of {c['operand']} x {c['runs']:.0f}  {c['source']}" for c in r["most"]
    ]
    for label, rows in (("largest arrays", arrays), ("largest sends", sends)):
        lines += [f"  {'' if i else label:19s}{row}".rstrip() for i, row in enumerate(rows)]
    return "\n".join(lines)


def shares(records: list[Record], step: steps.Step) -> str:
    """Return the share of rollout and update in a step's roofline time, as text."""
    count = step.setup.learner.microbatches
    times = {"rollout": 1, "update": 1, "part": count, "accumulate": count, "finish": 1}
    seconds = {r["program"]: times[r["program"]] * r["overlapped_s"] for r in records if r["program"] in times}
    total = sum(seconds.values())
    if len(seconds) < 2 + step.setup.overlapped or not total:
        return ""
    parts = ", ".join(f"{name} {100 * spent / total:.0f} %" for name, spent in seconds.items())
    tokens = step.setup.rows * step.setup.task.completion_length
    needs = interpreter.needs(step.setup.algorithm)
    text = f"step: at least {total:.3g} s ({parts}), at most {tokens / total:.4g} completion tokens per second"
    score = next((r for r in records if r["program"] == "score"), None)
    if score is not None:
        inside = "is part of the update" if needs.reference or needs.fixed_proximal else "is not used by this algorithm"
        text += f"; score ({score['overlapped_s']:.3g} s) {inside}"
    return text


ASSUMPTIONS = """\
Operations are counted from shapes: 2 for each multiply-add of a matrix product, loop bodies times their trip counts,
decoding up to its last token with the cache blocks in use at that token, the most expensive branch of a conditional,
tokens divided evenly among experts, all work divided evenly among chips. Bytes moved are the operands and results of
every instruction outside fusions, with loops likewise, a conditional in a loop as often as a cache block is in use, and
vector memory free. Bytes sent are counted for the algorithm
that sends least: all-gather b (n - 1), reduce-scatter b (n - 1) / n, all-reduce twice that, all-to-all b (n - 1) / n,
permute b, for n chips and operands of b bytes. Rates are the peaks of a chip with all its links in use; a collective
along one dimension of the torus uses only some of them. Times are therefore lower bounds."""
