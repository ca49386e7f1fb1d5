"""Check and repair a master table: fsck, repair, salvage."""
