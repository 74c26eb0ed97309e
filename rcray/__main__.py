"""`python -m rcray`: the command line without an installed script, as in a Ray job's working directory."""

from rcray.cli import main

main()
