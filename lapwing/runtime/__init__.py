"""What long runs need: memory, processes that work together, journals, progress, and files written whole."""
