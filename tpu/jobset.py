"""Fill in the manifest tpu/jobset.yaml for a run on GKE, and print it or pass it to kubectl.

    python tpu/jobset.py --name my-run --image REGISTRY/rljax:1 --type v5p --topology 4x4x4 [--slices 2] [--spot] \
        [--apply | --dry-run] -- --config quickstart --workdir gs://BUCKET/my-run

Prints the manifest. ``--apply`` passes it to ``kubectl apply -f -``; ``--dry-run`` also prints that command.
"""

import argparse
import json
import math
import pathlib
import re
import shlex
import string
import subprocess
import sys

LABELS = {
    "v4": "tpu-v4-podslice",
    "v5e": "tpu-v5-lite-podslice",
    "v5p": "tpu-v5p-slice",
    "v6e": "tpu-v6e-slice",
    "tpu7x": "tpu7x",
}
"""GKE's names for the kinds of TPU: values of the label cloud.google.com/gke-tpu-accelerator."""

FLAT = ("v5e", "v6e")  # kinds with two-dimensional topologies; the others have three dimensions


def hosts(kind: str, topology: str) -> tuple[int, int]:
    """Return (hosts per slice, chips per host).

    A host has four chips, except that 1x1 and 2x4 slices of v5e and v6e have one host with all chips.

    Raises:
      ValueError: not a topology of this kind.
    """
    numbers = 2 if kind in FLAT else 3
    if not re.fullmatch(r"[1-9]\d*" + r"x[1-9]\d*" * (numbers - 1), topology):
        raise ValueError(f"--topology {topology!r}: {kind} has topologies such as {'x'.join('4' * numbers)}.")
    chips = math.prod(int(n) for n in topology.split("x"))
    if kind in FLAT and topology in ("1x1", "2x4"):
        return 1, chips
    if chips % 4:
        raise ValueError(f"--topology {topology!r}: {chips} chips; must be a multiple of the 4 chips of a host.")
    return chips // 4, 4


def manifest(arguments: argparse.Namespace) -> str:
    """Return the manifest. Values are written as JSON, which is valid YAML."""
    number, chips = hosts(arguments.type, arguments.topology)
    selector = {
        "cloud.google.com/gke-tpu-accelerator": LABELS[arguments.type],
        "cloud.google.com/gke-tpu-topology": arguments.topology,
    }
    if arguments.spot:
        selector["cloud.google.com/gke-spot"] = "true"
    literal = [a.replace("$(", "$$(") for a in arguments.rest]  # Kubernetes replaces $(NAME) in arguments
    template = string.Template(pathlib.Path(__file__).with_name("jobset.yaml").read_text())
    return template.substitute(
        name=json.dumps(arguments.name),
        namespace=json.dumps(arguments.namespace),
        image=json.dumps(arguments.image),
        slices=arguments.slices,
        hosts=number,
        chips=chips,
        max_restarts=arguments.max_restarts,
        selector=json.dumps(selector),
        arguments=json.dumps(literal),
    )


def parse(argv: list[str]) -> argparse.Namespace:
    """Parse the command line; the arguments after -- become ``rest``, the arguments of python -m rljax."""
    parser = argparse.ArgumentParser(prog="tpu/jobset.py", description="Run on GKE.", allow_abbrev=False)
    parser.add_argument("--name", required=True, help="name of the JobSet: lower-case letters, digits, dashes")
    parser.add_argument(
        "--image", required=True, help="container image with rljax and its extra tpu installed; see tpu/README.md"
    )
    parser.add_argument("--type", required=True, choices=LABELS, help="kind of TPU")
    parser.add_argument("--topology", required=True, help="chips of a slice: 4x4 (v5e, v6e), 4x4x4 (the others)")
    parser.add_argument("--slices", type=int, default=1, help="number of slices, each with a node pool")
    parser.add_argument("--spot", action="store_true", help="use spot nodes")
    parser.add_argument("--namespace", default="default", help="Kubernetes namespace")
    parser.add_argument("--max-restarts", type=int, default=100, help="restarts of all pods together")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--apply", action="store_true", help="pass the manifest to kubectl")
    action.add_argument("--dry-run", action="store_true", help="also print the command of --apply")
    cut = argv.index("--") if "--" in argv else len(argv)
    arguments = parser.parse_args(argv[:cut])
    arguments.rest = argv[cut + 1 :]
    if not re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?", arguments.name) or len(arguments.name) > 40:
        parser.error(f"--name {arguments.name!r}: must be a letter and up to 39 lower-case letters, digits and dashes.")
    if arguments.slices < 1 or arguments.max_restarts < 0:
        limits = "must be at least 1 and 0"
        parser.error(f"--slices {arguments.slices} --max-restarts {arguments.max_restarts}: {limits}.")
    if not arguments.rest:
        parser.error("no arguments for rljax: add -- --config CONFIG --workdir gs://BUCKET/RUN")
    try:
        hosts(arguments.type, arguments.topology)
    except ValueError as error:
        parser.error(str(error))
    return arguments


def main(argv: list[str]) -> int:
    """Print the manifest or apply it; return the exit code, kubectl's if it ran."""
    arguments = parse(argv)
    text = manifest(arguments)
    command = ["kubectl", "apply", "-f", "-"]
    if arguments.apply:
        print("+", shlex.join(command))
        return subprocess.run(command, input=text, text=True, check=False).returncode
    print(text, end="")
    if arguments.dry_run:
        print("# +", shlex.join(command))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
