"""What can stop an import. A single bad line never does: it is refused with an InvalidEvent and counted."""

from __future__ import annotations

from master_dataset.errors import MasterDatasetError


class ImportFailed(MasterDatasetError):
    """The import stopped. Run again, it continues after the last line that was acknowledged."""


class UnusableInput(ImportFailed):
    """A file, an option or a header with which no line can be read correctly."""

    exit_code = 2


class UnreadableInput(ImportFailed):
    """A file that ends too early or that the disk cannot read. What came before was imported."""


class BrokerUnavailable(ImportFailed):
    """Kafka did not answer, or did not acknowledge, in time."""


class ImportRunning(ImportFailed):
    """Another process imports the same file into the same source now."""

    exit_code = 75
