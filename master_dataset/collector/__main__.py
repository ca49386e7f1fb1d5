"""Run the collector: `python -m master_dataset.collector`."""

from __future__ import annotations

import gc
import sys

import structlog
import uvicorn

from infra.errors import InfraError
from infra.logs import configure_logging
from infra.settings import load_settings
from infra.stack.addresses import addresses
from master_dataset.collector.app import create_app
from views.declarations import declared_by
from views.errors import DeclarationError

GC_THRESHOLD = 100_000

log = structlog.get_logger()


def main() -> int:
    """Serve until a signal ends it; requests on their way are finished first."""
    try:
        settings = load_settings()
        configure_logging(settings.log_level, form=settings.log_format)
        declarations = declared_by(settings)
        app = create_app(settings, declarations)
    except (InfraError, DeclarationError) as error:
        sys.stderr.write(f"tidemark collector: {error}\n")
        return error.exit_code
    log.info("serving", address=addresses(settings).collector, sources=sorted(declarations.sources))
    # Events are trees: they are freed without the cycle collector, which would look through every batch several times.
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 50, 50)
    uvicorn.run(
        app,
        host=settings.collector_host,
        port=settings.collector_port,
        loop="uvloop",
        http="httptools",
        ws="none",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,  # nothing here depends on the client's address
        timeout_graceful_shutdown=int(settings.collector_ack_timeout_s) + 1,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
