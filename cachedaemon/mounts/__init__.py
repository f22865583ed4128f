"""Mounted folders, read by a process of their own.

A call into a mount that hangs cannot always be ended: with FUSE not even SIGKILL ends a thread whose call the file system
has begun. In a thread of the daemon it would keep the daemon's process from ending, and with it the lock on the cache
directory that its successor waits for. So each source has a helper process, which holds nothing of the daemon's but the
ends of pipes, and can be left to itself. Modules here import nothing heavy: the helper starts fast and stays small.
"""
