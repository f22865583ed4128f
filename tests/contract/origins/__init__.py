"""One suite that every origin passes. A later origin adds its `Place` to `places.PLACES`, and nothing else."""
