"""`python -m lapwing.cli` is the same as `lapwing`."""

from lapwing.cli import main

main()
