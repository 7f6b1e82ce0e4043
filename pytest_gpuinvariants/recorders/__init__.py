"""Sources of events: one file each, behind one protocol."""
