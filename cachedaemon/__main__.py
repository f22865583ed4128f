"""`python -m cachedaemon` is the command `cachedaemon`."""

from cachedaemon.cli import main

if __name__ == "__main__":
    main()
