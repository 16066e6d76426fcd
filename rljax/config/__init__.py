"""Settings of a run: the schema, config files, and how the names in a config are resolved.

=============  ============================================================================
``schema.py``   collects the groups of settings of all folders; ``default()`` and ``phase()``
``files.py``    config files by name, edits of a config, how two differ
``resolve.py``  checks the settings and looks the names up: ``check``, ``phases``
``page.py``     ``python -m rljax config`` and configs/README.md
=============  ============================================================================
"""

from rljax.config import files as files
from rljax.config import resolve as resolve
from rljax.config import schema as schema
from rljax.config.files import load as load
from rljax.config.schema import ConfigDict as ConfigDict
from rljax.config.schema import default as default
from rljax.config.schema import phase as phase
