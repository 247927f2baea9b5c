"""What each command does, one per file; nothing else in the package imports from here."""
