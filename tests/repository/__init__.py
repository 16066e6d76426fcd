"""Tests of the repository as a whole: imports, pages, packages, notebooks, studies, scripts of tpu/."""
