"""``python -m rljax aot`` by the name of TPUs: ``--topology`` is its ``--target``.

python tpu/compile.py --config configs/quickstart.py --topology v5e:4x4
"""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))  # works without installing the package

from rljax import __main__

if __name__ == "__main__":
    __main__.run("aot", [word.replace("--topology", "--target", 1) for word in sys.argv[1:]])
