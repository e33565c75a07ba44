"""What stands around the core: the command line, records of runs, their pages, and the demonstration."""
