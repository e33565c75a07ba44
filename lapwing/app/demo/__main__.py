"""`python -m lapwing.app.demo`."""

from lapwing.app.demo import main

main()
