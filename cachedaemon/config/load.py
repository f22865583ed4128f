"""From file, environment and flags to `Settings`: flags win over environment, that over the file."""

from __future__ import annotations

import os
import pwd
import re
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from cachedaemon.config.checks import of_parts, problems
from cachedaemon.config.explain import explain
from cachedaemon.config.settings import Cache, Settings, Sources
from cachedaemon.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cachedaemon.config.explain import Keys

STANDARD_FILE = Path("/etc/cachedaemon/cachedaemon.toml")

_PREFIX = "CACHEDAEMON_"
_FILE_MOST = 16 << 20  # bytes; more is not a configuration but a wrong path

Tree = dict[str, Any]


def load(  # noqa: PLR0913 - three sources of settings, and what tests and commands differ in
    path: str | None,
    environ: Mapping[str, str],
    flags: Mapping[str, object],
    *,
    need_sources: bool = True,
    root: bool | None = None,
    standard: Path = STANDARD_FILE,
) -> Settings:
    """Read, merge and check the whole configuration; `flags` are dotted paths to values, None for a flag not given.

    Looks at the disk (sources' folders too): from a running daemon call it in a thread. `root` is whether the defaults
    are those of root (None: as the process is). ConfigError has one line per problem.
    """
    label: dict[Keys, str] = {}
    tree = _of_file(path, environ, standard)
    for keys, value, origin in (*_of_environ(environ), *_of_flags(flags)):
        _put(tree, keys, value)
        label[keys] = origin
    _defaults(tree, environ, root=os.geteuid() == 0 if root is None else root)
    try:
        settings = Settings.model_validate(tree, context={"environ": environ})
    except ValidationError as error:
        raise ConfigError("\n".join([*explain(error, label), *_of_the_rest(tree, error, environ)])) from None
    found = list(problems(settings, environ, need_sources=need_sources))
    if found:
        raise ConfigError("\n".join(found))
    return settings


def _of_the_rest(tree: Tree, error: ValidationError, environ: Mapping[str, str]) -> Iterator[str]:
    """Problems of the parts that the error does not speak of, so that one look tells of all."""
    refused = {tuple(str(key) for key in detail["loc"][:2]) for detail in error.errors()}
    is_cache_good = not any(keys[0] == "cache" for keys in refused)
    context = {"environ": environ}
    cache = Cache.model_validate(tree["cache"], context=context) if is_cache_good else None
    tables = tree["sources"] if ("sources",) not in refused else {}
    good = {name: table for name, table in tables.items() if ("sources", name) not in refused}
    return of_parts(cache, TypeAdapter(Sources).validate_python(good, context=context), environ)


def _of_file(path: str | None, environ: Mapping[str, str], standard: Path) -> Tree:
    """Tables of the file; empty without one. Only the standard file may be absent."""
    named = path or environ.get("CACHEDAEMON_CONFIG")
    where = Path(named) if named else standard
    try:
        with where.open("rb") as file:
            data = file.read(_FILE_MOST + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        if not named:
            return {}
        msg = f"{where}: the configuration file cannot be read ({error.strerror})"
        raise ConfigError(msg) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        msg = f"{str(where)!r}: the configuration file cannot be read ({getattr(error, 'strerror', None) or error})"
        raise ConfigError(msg) from None
    if len(data) > _FILE_MOST:
        msg = f"{where}: a configuration file has at most {_FILE_MOST} bytes"
        raise ConfigError(msg)
    return _parse(data, where)


def _parse(data: bytes, where: Path) -> Tree:
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        msg = f"{where}, line {line}: not UTF-8"
    except tomllib.TOMLDecodeError as error:
        found = re.fullmatch(r"(.*) \(at line (\d+), column (\d+)\)", str(error))
        what, line = (found[1], int(found[2])) if found else (str(error), data.count(b"\n") + 1)
        msg = f"{where}, line {line}: not valid TOML: {what}"
    except RecursionError:
        msg = f"{where}: not a configuration: nested too deeply"
    raise ConfigError(msg)


def _of_environ(environ: Mapping[str, str]) -> Iterator[tuple[Keys, str, str]]:
    """Settings among the variables: only names with `__`, since platforms inject others (CACHEDAEMON_PORT)."""
    for name in sorted(environ):
        if name.startswith(_PREFIX) and "__" in name:
            keys = name.removeprefix(_PREFIX).lower().split("__")
            if "headers" in keys[:-1]:
                keys[-1] = keys[-1].replace("_", "-")  # a variable's name has no hyphen, a header's no underscore
            yield tuple(keys), environ[name], f"environment variable {name}"


def _of_flags(flags: Mapping[str, object]) -> Iterator[tuple[Keys, object, str]]:
    for path, value in flags.items():
        if value is not None:
            yield _split(path), value, "command line"


def _split(path: str) -> Keys:
    """Keys of a dotted path; a source's name may have dots of its own."""
    section, _, rest = path.partition(".")
    if section == "sources":
        name, _, key = rest.rpartition(".")
        return section, name, key
    return tuple(path.split("."))


def _put(tree: Tree, keys: Keys, value: object) -> None:
    """Set one value; a header replaces the one that the file gives in other letters."""
    for depth, key in enumerate(keys[:-1], 1):
        below = tree.setdefault(key, {})
        if not isinstance(below, dict):
            msg = f"{'.'.join(keys[:depth])}: allowed is a table, since {'.'.join(keys)} is set too"
            raise ConfigError(msg)
        tree = below
    if "headers" in keys[:-1]:
        for name in [name for name in tree if name.lower() == keys[-1].lower()]:
            del tree[name]
    tree[keys[-1]] = value


def _defaults(tree: Tree, environ: Mapping[str, str], *, root: bool) -> None:
    """Fill in the sections, and what depends on who runs the daemon."""
    for section in ("cache", "server", "log", "fetch", "sources"):
        tree.setdefault(section, {})
    cache, server = tree["cache"], tree["server"]
    if isinstance(cache, dict) and "dir" not in cache:
        cache["dir"] = "/var/cache/cachedaemon" if root else _user_cache(environ)
    if isinstance(server, dict) and "socket" not in server:
        server["socket"] = "/run/cachedaemon/cachedaemon.sock" if root else _user_socket(environ)


def _user_cache(environ: Mapping[str, str]) -> str:
    """`$XDG_CACHE_HOME`, else `~/.cache`; relative ones are ignored (XDG Base Directory Specification)."""
    base = environ.get("XDG_CACHE_HOME", "")
    return str(Path(base if base.startswith("/") else _home(environ) + "/.cache") / "cachedaemon")


def _home(environ: Mapping[str, str]) -> str:
    if environ.get("HOME", "").startswith("/"):
        return environ["HOME"]
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        msg = "cache.dir: not set, and this user has no home; allowed is the path of a folder"
        raise ConfigError(msg) from None


def _user_socket(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_RUNTIME_DIR", "")
    if not base.startswith("/"):
        msg = "server.socket: not set, and XDG_RUNTIME_DIR is not set either; allowed is the path of the Unix socket"
        raise ConfigError(msg)
    return str(Path(base) / "cachedaemon/cachedaemon.sock")
