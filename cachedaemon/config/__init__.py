"""Configuration: one frozen `Settings` from file, environment and flags. The only place that reads the environment."""

from cachedaemon.config.aistore import AisUrl, ais_token, ais_url
from cachedaemon.config.buckets import BucketUrl, bucket_url
from cachedaemon.config.buckets import fault as name_fault
from cachedaemon.config.credentials import Credentials, account_of, credentials_of
from cachedaemon.config.environ import bare_environment, goes_to_journal, whole_environment
from cachedaemon.config.extras import YOUTUBE, is_fsspec
from cachedaemon.config.load import STANDARD_FILE, load
from cachedaemon.config.manager import Handed, take_handed
from cachedaemon.config.plugins import origin_class
from cachedaemon.config.reload import changes
from cachedaemon.config.secret import Secret, json_of
from cachedaemon.config.settings import Cache, Fetch, Log, Server, Settings, Source, UnpackLimits
from cachedaemon.config.urls import folder_of, public_url, scheme_of, schemes
from cachedaemon.config.values import Address, Share

__all__ = [
    "STANDARD_FILE",
    "YOUTUBE",
    "Address",
    "AisUrl",
    "BucketUrl",
    "Cache",
    "Credentials",
    "Fetch",
    "Handed",
    "Log",
    "Secret",
    "Server",
    "Settings",
    "Share",
    "Source",
    "UnpackLimits",
    "account_of",
    "ais_token",
    "ais_url",
    "bare_environment",
    "bucket_url",
    "changes",
    "credentials_of",
    "folder_of",
    "goes_to_journal",
    "is_fsspec",
    "json_of",
    "load",
    "name_fault",
    "origin_class",
    "public_url",
    "scheme_of",
    "schemes",
    "take_handed",
    "whole_environment",
]
