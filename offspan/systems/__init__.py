"""Others' systems as problems; each module is imported by name and needs its own extra."""
