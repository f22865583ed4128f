"""`python -m cachedaemon.demo.tied WORDS...`: our Python with these arguments, ended when the demo ends."""

import os
import sys

from cachedaemon.demo.children import end_with_parent

if __name__ == "__main__":
    end_with_parent()
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])  # noqa: S606 - the same process, so that it keeps its pid
