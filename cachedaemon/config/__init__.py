"""Configuration: one frozen `Settings` from file, environment and flags. The only place that reads the environment."""

from cachedaemon.config.load import STANDARD_FILE, load
from cachedaemon.config.plugins import origin_class
from cachedaemon.config.reload import changes
from cachedaemon.config.secret import Secret
from cachedaemon.config.settings import Cache, Fetch, Log, Server, Settings, Source, UnpackLimits
from cachedaemon.config.urls import folder_of, public_url, scheme_of, schemes
from cachedaemon.config.values import Address, Share

__all__ = [
    "STANDARD_FILE",
    "Address",
    "Cache",
    "Fetch",
    "Log",
    "Secret",
    "Server",
    "Settings",
    "Share",
    "Source",
    "UnpackLimits",
    "changes",
    "folder_of",
    "load",
    "origin_class",
    "public_url",
    "scheme_of",
    "schemes",
]
