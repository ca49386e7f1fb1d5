"""Every setting: its name, its default and what it is for.

A value comes from the environment (`TIDEMARK_<NAME>`), then from `tidemark.toml`, then from the default.
Secrets come from the environment or from a file named by `<name>_file`, never from `tidemark.toml`.
"""

from infra.settings.load import Row, child_environment, load_settings, settings_rows
from infra.settings.table import PREFIX, SECRETS, Settings

__all__ = ["PREFIX", "SECRETS", "Row", "Settings", "child_environment", "load_settings", "settings_rows"]
