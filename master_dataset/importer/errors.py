"""What can stop an import. A single bad line never does: it is refused with an InvalidEvent and counted."""

from __future__ import annotations

from master_dataset.errors import MasterDatasetError


class ImportFailed(MasterDatasetError):
    """The import could not go on. Run again, it continues from the last line that was acknowledged."""


class UnusableInput(ImportFailed):
    """A file, an option or a header with which no line could be read rightly."""

    exit_code = 2


class UnreadableInput(ImportFailed):
    """A file that ends too early or that the disk no longer gives. What came before was imported."""


class BrokerUnavailable(ImportFailed):
    """Kafka did not answer, or did not acknowledge, within the time that was granted."""


class ImportRunning(ImportFailed):
    """Another process imports the same file into the same source now."""

    exit_code = 75
