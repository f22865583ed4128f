"""Places of the origins that the suite (`cachedaemon.conformance`) runs on here. A later origin adds its own to `places.PLACES`."""
