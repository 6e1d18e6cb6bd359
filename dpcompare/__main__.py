"""`python -m dpcompare` is the command `dpcompare`."""

from dpcompare.cli import main

if __name__ == "__main__":
    main()
