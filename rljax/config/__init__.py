"""Settings of a run: the schema, config files, and how names in a config are resolved."""

from rljax.config.files import load as load
from rljax.config.schema import ConfigDict as ConfigDict
from rljax.config.schema import default as default
from rljax.config.schema import phase as phase
