"""Programs that read for an origin with somebody else's library, each in a process of its own.

Such a library may hang, leak, start threads and keep connections; a call of it cannot be ended from outside. A process
can. One process serves one transfer at a time, and whoever gives a transfer up has its process killed unless it notices
within a moment (`cachedaemon.origins.workers`). Only programs here import those libraries; the daemon never does.
"""
