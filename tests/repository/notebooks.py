"""Execute notebooks as a reader would, and keep what they print and draw.

    python -m tests.repository.notebooks NAME ...  # executes notebooks/NAME.ipynb in full and writes its outputs into
    the file

The figures are reduced to 32 colors, so that a repository with its history stays small.
"""

import base64
import io
import os
import pathlib
import subprocess
import sys
import tempfile

import nbclient
import nbformat
from PIL import Image

ROOT = pathlib.Path(__file__).parents[2]
COLORS = 32


def read(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def execute(notebook, workdir, environment):
    """Execute a notebook in place, on one CPU device, in a folder."""
    dropped = ("XLA_FLAGS", "RLJAX_QUICK", "TPU_")  # jax sets TPU_LIBRARY_PATH in the process that imports it
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    client = nbclient.NotebookClient(
        notebook, timeout=900, record_timing=False, resources={"metadata": {"path": str(workdir)}}
    )
    variables = inherited | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"} | environment
    client.execute(env=variables, stderr=subprocess.DEVNULL)  # the kernel's log; that of a cell is an output


def smaller(png):
    """Return a base64 PNG with a palette of ``COLORS``, where that is smaller."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    file = io.BytesIO()
    picture.quantize(COLORS, dither=Image.Dither.NONE).save(file, "png", optimize=True)
    return min(base64.b64encode(file.getvalue()).decode(), png, key=len)


def keep(name):
    """Execute a notebook in full and write it with its outputs."""
    notebook = read(name)
    with tempfile.TemporaryDirectory() as workdir:
        execute(notebook, workdir, {})
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = smaller(output.data["image/png"])
    notebook.metadata.language_info = {"name": "python"}
    nbformat.write(notebook, ROOT / "notebooks" / f"{name}.ipynb")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        keep(name)
