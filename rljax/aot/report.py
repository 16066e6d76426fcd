"""What is known of compiled programs: measured and counted, as one record each, and as text."""

import resource
import sys
from typing import Any

from rljax.algorithms import interpreter
from rljax.aot import collectives, hlo, programs, roofline, topology, traffic
from rljax.training import steps

Record = dict[str, Any]


def layout(step: steps.Step) -> collectives.Layout:
    """Return where the devices of a step's mesh stand."""
    mesh = step.setup.mesh
    slices = tuple(getattr(d, "slice_index", 0) or 0 for d in mesh.devices.flat)
    return collectives.Layout(mesh.axis_names, tuple(mesh.shape.values()), slices)


def describe(step: steps.Step, made: programs.Compiled, target: topology.Topology) -> Record:
    """Return the record of a compiled program; bytes, operations and seconds are of one device."""
    devices = len(target.devices)
    module = hlo.parse(made.text)
    unbound = programs.blocks(step)
    found = collectives.find(module, layout(step), unbound)
    sent = {network: collectives.sent(found, network) for network in ("ici", "dcn")}
    moved = traffic.moved(module, unbound)
    times = roofline.times(target.kind, made.flops / devices, moved, sent["ici"], sent["dcn"])
    loops = [r for r in hlo.runs(module) if r.instruction.opcode == "while"]
    unknown = sum(hlo.trip_count(module, r.computation, r.instruction) is None for r in loops)
    return {
        "program": made.name,
        "lower_s": made.lower_s,
        "compile_s": made.compile_s,
        "compile_cpu_s": made.compile_cpu_s,
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024),
        "arguments": made.arguments,
        "outputs": made.outputs,
        "aliased": made.aliased,
        "temporaries": made.temporaries,
        "peak": made.peak,
        "hbm": target.kind.share().hbm,
        "flops": made.flops / devices,
        "model_flops": roofline.model_flops(step.setup, made.name, step.shape.params["policy"]) / devices,
        "moved": moved,
        **{f"sent_{network}": size for network, size in sent.items()},
        "collectives": [
            {"kind": k, "axes": list(axes), "network": network, "runs": runs, "sent": size}
            for (k, axes, network), (runs, size) in collectives.totals(found).items()
        ],
        "most": _alike(found)[:6],
        "largest": [
            {"array": str(s), "bytes": s.bytes, "op": op, "source": source}
            for s, op, source in traffic.largest(module, 6)
        ],
        "unknown_loops": unknown,
        "unread": len(hlo.unread(module)),
        "seconds": {"compute": times.compute, "memory": times.memory, "ici": times.ici, "dcn": times.dcn},
        "overlapped_s": times.overlapped,
        "apart_s": times.apart,
        "bound": times.bound,
    }


def _alike(found: list[collectives.Collective]) -> list[Record]:
    """Return collectives of the same arrays from the same line together, those that send most first."""
    alike: dict[tuple[str, ...], Record] = {}
    for c in found:
        operand = " ".join(map(str, c.operand[:4])) + " ..." * (len(c.operand) > 4)
        known = alike.setdefault(
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
        known["runs"] += c.times
        known["sent"] += c.sent
    return sorted(alike.values(), key=lambda known: -known["sent"])


def size(count: float) -> str:
    """Return bytes for people."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.3g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:.2f} GiB"


def table(record: Record) -> str:
    """Return a program's record as text."""
    r, tera = record, 1e12
    seconds = ", ".join(f"{unit} {s:.3g}" for unit, s in r["seconds"].items() if s)
    share = r["model_flops"] / r["flops"] if r["flops"] else 0.0
    lines = [
        f"{r['program']}: traced and lowered in {r['lower_s']:.1f} s, compiled in {r['compile_s']:.1f} s "
        f"({r['compile_cpu_s']:.1f} of CPU), peak {r['peak_rss'] / 2**30:.2f} GiB of this machine's memory",
        f"  memory of a chip   peak {size(r['peak'])} of {r['hbm'] / 2**30:.0f} GiB "
        f"({100 * r['peak'] / r['hbm']:.0f} %): arguments {size(r['arguments'])}, "
        f"temporaries {size(r['temporaries'])}, outputs {size(r['outputs'] - r['aliased'])} beside those in place",
        f"  work of a chip     {r['flops'] / tera:.4g} TFLOPs counted, of which the model needs "
        f"{r['model_flops'] / tera:.4g} ({100 * share:.0f} %); {size(r['moved'])} moved in its memory",
    ]
    for c in r["collectives"]:
        axes = "+".join(c["axes"]) or "one chip"
        lines.append(f"  {c['kind']:19s}{axes:24s}{c['network']:4s}{c['runs']:>8.0f} times {size(c['sent']):>12s} sent")
    if r["unread"]:
        lines.append(f"  NOT COUNTED        {r['unread']} computations are called in a way that is not known here")
    if not r["collectives"]:
        lines.append("  nothing sent")
    lines.append(
        f"  roofline           {r['overlapped_s']:.3g} s bound by {r['bound']} if all overlaps, "
        f"{r['apart_s']:.3g} s if nothing does ({seconds})"
    )
    lines += [
        f"  large array        {size(a['bytes']):>10s}  {a['array']}  {a['source'] or a['op']}" for a in r["largest"]
    ]
    for c in r["most"]:
        lines.append(
            f"  sends much         {size(c['sent']):>10s}  {c['kind']} of {c['operand']} x {c['runs']:.0f}  "
            f"{c['source']}"
        )
    return "\n".join(lines)


def shares(records: list[Record], step: steps.Step) -> str:
    """Return what part of a step each phase takes, by the roofline."""
    phases = [r for r in records if r["program"] in ("rollout", "update")]
    total = sum(r["overlapped_s"] for r in phases)
    if len(phases) < 2 or not total:
        return ""
    parts = ", ".join(f"{r['program']} {100 * r['overlapped_s'] / total:.0f} %" for r in phases)
    tokens = step.setup.rows * step.setup.task.completion_length
    needs = interpreter.needs(step.setup.algorithm)
    text = f"step: {total:.3g} s by the roofline ({parts}), {tokens / total:.4g} completion tokens a second at most"
    score = next((r for r in records if r["program"] == "score"), None)
    if score is not None:
        inside = (
            "is inside the update" if needs.reference or needs.fixed_proximal else "this algorithm does not ask for"
        )
        text += f"; score, {score['overlapped_s']:.3g} s, {inside}"
    return text


ASSUMPTIONS = """\
Operations are counted from shapes, 2 for each multiplication and addition of a matrix product, loops as often as they
turn, decoding to its last token, with the blocks of its cache that are in use then, of a condition the dearest branch,
experts evenly used; chips share them evenly. Bytes moved are operands and results of every instruction outside fusions,
loops likewise, vector memory free. Bytes sent are those of the sparsest algorithm: all-gather b (n - 1), reduce-scatter
b (n - 1) / n, all-reduce twice that, all-to-all b (n - 1) / n, permute b, for n chips and operands of b bytes. Rates
are the chip's peaks, all its links at once: a collective along one dimension of the torus has a part of them. A time is
a bound from below."""
