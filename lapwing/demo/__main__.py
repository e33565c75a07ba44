"""`python -m lapwing.demo`."""

from lapwing.demo import main

main()
