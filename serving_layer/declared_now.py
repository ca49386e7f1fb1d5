"""What the views folder declares now: a process that goes on for years started with what was declared then.

Views follow the runs that are published. This is for what no run says: the version of a source that is to come, and the
condition of a watch.
"""

from __future__ import annotations

import threading

import structlog

from infra.disk import FileStamp, file_stamp
from infra.settings import Settings
from views.declarations import Declarations, declared_by
from views.errors import DeclarationError

log = structlog.get_logger()


class DeclaredNow:
    """What the views folder declares now. Threads share it.

    A folder that cannot be loaded, because somebody is editing it, declares what it did before.
    """

    def __init__(self, settings: Settings, declarations: Declarations) -> None:
        self._settings, self._known = settings, declarations
        self._stamps = self._stamps_now()
        self._lock = threading.Lock()

    def __call__(self) -> Declarations:
        """The declarations."""
        with self._lock:
            stamps = self._stamps_now()
            if stamps != self._stamps:
                self._stamps = stamps
                try:
                    self._known = declared_by(self._settings)
                except DeclarationError as error:
                    log.warning("views_not_loaded", reason=str(error))
            return self._known

    def _stamps_now(self) -> dict[str, FileStamp | None]:
        folder = self._settings.views_dir
        return (
            {}
            if folder is None
            else {str(path): file_stamp(path) for path in sorted(folder.glob("*")) if path.is_file()}
        )
