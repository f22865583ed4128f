"""Object stores: S3, Google Cloud Storage, Azure, and what speaks like them. Imported only when a source needs it."""

from cachedaemon.origins.objects.origin import ObjectOrigin

__all__ = ["ObjectOrigin"]
