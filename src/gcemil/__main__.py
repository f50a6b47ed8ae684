"""`python -m gcemil`, the same as the command `gcemil`."""

from gcemil.cli.main import main

if __name__ == "__main__":
    main()
