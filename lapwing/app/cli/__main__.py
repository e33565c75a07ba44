"""`python -m lapwing.app.cli` is the same as `lapwing`."""

from lapwing.app.cli import main

main()
