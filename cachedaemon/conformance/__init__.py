"""The suite that every origin passes, for those of this distribution and of others alike.

In a test module of a distribution that brings an origin (`pip install ./client '.[conformance]'` in a checkout of this one)::

    import pytest
    from cachedaemon.conformance import OriginSuite

    class TestMine(OriginSuite):
        @pytest.fixture
        def place(self, tmp_path):
            return MyPlace(tmp_path)

`Place` says what a place must be able to do. Run under pytest with pytest-asyncio; a test that a place cannot take is
skipped with the reason that the place gives in `lacks`.
"""

import pytest

# Before they are imported: a failed assertion shall show its values, as in a test module.
pytest.register_assert_rewrite(
    f"{__name__}.suite", f"{__name__}.reading", f"{__name__}.versions", f"{__name__}.leaving"
)

from cachedaemon.conformance.place import BY_DESIGN, STALL, Place, Then, Trait, nothing  # noqa: E402 - see above
from cachedaemon.conformance.reading import bytes_of, opened, read, read_part, stream_of  # noqa: E402
from cachedaemon.conformance.suite import OriginSuite  # noqa: E402

__all__ = [
    "BY_DESIGN",
    "STALL",
    "OriginSuite",
    "Place",
    "Then",
    "Trait",
    "bytes_of",
    "nothing",
    "opened",
    "read",
    "read_part",
    "stream_of",
]
