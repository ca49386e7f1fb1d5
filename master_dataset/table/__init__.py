"""The master table of a source: commits with proofs, coverage, the ledger, compaction."""
