"""`python -m spectrograd`."""

from spectrograd.cli import main

if __name__ == "__main__":
    main()
