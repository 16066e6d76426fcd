"""Settings of a run: the schema, config files, and the resolution of names in a config.

=============  ============================================================================
``schema.py``   collects the groups of settings: ``default()``, ``phase()``
``files.py``    loads config files by name, edits configs and compares them
``resolve.py``  checks the settings and resolves the names: ``check``, ``phases``
``choices.py``  what a phase chooses: settings, algorithm and optimizers, also with traced numbers
``page.py``     lists all fields: ``python -m rljax config``, configs/README.md
=============  ============================================================================
"""

from rljax.config import files as files
from rljax.config import resolve as resolve
from rljax.config import schema as schema
from rljax.config.files import load as load
from rljax.config.schema import ConfigDict as ConfigDict
from rljax.config.schema import default as default
from rljax.config.schema import phase as phase
