"""`python -m genwright VERB`."""

from genwright.cli import main

main()
