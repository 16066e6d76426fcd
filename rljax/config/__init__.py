"""Settings of a run: the schema, config files, and the resolution of names in a config.

=================  ============================================================================
``schema.py``       configs as users edit them: ``default()``, ``phase()``, ``module()``
``files.py``        loads config files by name, edits configs and compares them
``resolve.py``      checks the fields and resolves the names, in the order of its text: ``run``
``compatible.py``   checks that algorithm, source, task and sizes of a phase fit each other
``modules.py``      resolves the networks beside the policy
``effects.py``      warns of what is set and has no effect
``page.py``         lists all fields: ``python -m rljax config``, configs/README.md
=================  ============================================================================
"""

from rljax.config import files as files
from rljax.config import resolve as resolve
from rljax.config import schema as schema
from rljax.config.files import load as load
from rljax.config.schema import ConfigDict as ConfigDict
from rljax.config.schema import default as default
from rljax.config.schema import phase as phase
