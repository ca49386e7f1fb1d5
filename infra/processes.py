"""The main function of a layer's process: settings, logging, the work, and an exit code that the supervisor reads."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from infra.logs import configure_logging
from infra.settings import Settings, load_settings

log = structlog.get_logger()


def run_process(work: Callable[[Settings], None], tell: Callable[[Settings, str], None]) -> int:
    """Do `work` until it returns (exit code 0) or fails; `tell` leaves the reason where `tidemark status` finds it.

    An error that has an `exit_code` is one that a person can mend: its sentence is logged, and its code returned.
    Any other is a defect or a broken machine: it is logged with its traceback, and the code is 1.
    """
    settings = load_settings()
    configure_logging(settings.log_level)
    try:
        work(settings)
    except Exception as error:
        tell(settings, str(error))
        if (exit_code := getattr(error, "exit_code", None)) is None:
            log.exception("failed")
            return 1
        log.error("refused", why=str(error))  # noqa: TRY400  a sentence for a person, no traceback
        return int(exit_code)
    return 0
