"""How LMCache finds the connector: by `tarn://` and `tarns://` URLs and as the storage plugin
`tarn` (or `tarn.NAME`)."""

from __future__ import annotations

from typing import Any, Dict, Optional

from . import _base
from .connector import TarnConnector

_SCHEMES = ("tarn://", "tarns://", "tarn+sentinel://", "tarns+sentinel://")
_PLUGIN = "plugin://"
_OWN = "remote_storage_plugin."
_OF_LMCACHE = ("module_path", "class_name", "url")
_troubles = _base.Troubles(_base.logger_of(__name__))
OPTIONS = ("get_threads", "put_threads", "pin_ms", "put_backlog", "replicas", "namespace", "hints")


def _plugin_name(url: str) -> Optional[str]:
    """ "tarn.a" of plugin://tarn.a; None: not one of ours."""
    if not url.startswith(_PLUGIN):
        return None
    name = url[len(_PLUGIN) :].strip("/")
    return name if name == "tarn" or name.startswith("tarn.") else None


class TarnConnectorAdapter(_base.ConnectorAdapter):  # type: ignore[misc]
    """Takes no arguments: all there is to know comes with the context of `create_connector`."""

    def __init__(self) -> None:
        super().__init__("tarn://")

    def can_parse(self, url: str) -> bool:
        """tarn://, tarns://, the same with +sentinel, plugin://tarn and plugin://tarn.NAME."""
        return url.startswith(_SCHEMES) or _plugin_name(url) is not None

    def create_connector(self, context: Any) -> TarnConnector:
        """ValueError: there is no URL, or an option is wrong, which is logged as well: LMCache may
        swallow it. ConnectionFailed and the like: no server. LMCache tries again later."""
        try:
            url, options = self._url(context), _connector_options(
                _extra_config(context.config), _plugin_of(context)
            )
            return TarnConnector(
                url,
                context.loop,
                context.local_cpu_backend,
                context.config,
                getattr(context, "metadata", None),
                **options,
            )
        except ValueError as e:
            _troubles.refuse(str(e), e)
            raise

    def _url(self, context: Any) -> str:
        """The pool of a backend: the plugin's own, else remote_url. A plugin without one of its own
        is what lines for LMCache up to 0.4.3 look like to a later one, which makes a backend of
        both."""
        url, remote = context.url, getattr(context.config, "remote_url", None)
        plugin = _plugin_of(context)
        if plugin is None:
            self._warn_of_two(context)
            return str(url)
        name = f"{_OWN}{plugin}.url"
        url = _extra_config(context.config).get(name)
        if url is None and isinstance(remote, str) and remote.startswith(_SCHEMES):
            return remote
        if not isinstance(url, str) or not url.startswith(_SCHEMES):
            # Without what is there: it may have a password.
            raise ValueError(f'extra_config needs "{name}": "tarn://host:port"')
        return url

    def _warn_of_two(self, context: Any) -> None:
        """Where plugins are backends of their own, remote_url is one more, for the same chunks."""
        ours = [
            n
            for n in getattr(context.config, "remote_storage_plugins", None) or ()
            if _plugin_name(_PLUGIN + n)
        ]
        if ours and hasattr(context, "plugin_name"):
            _troubles.warn(
                "remote_url",
                "this LMCache makes one backend of remote_url and another of "
                "remote_storage_plugins, and "
                "everything is put and looked up twice: move the URL to extra_config, "
                f'"{_OWN}{ours[0]}.url"',
            )


def _extra_config(config: Any) -> Dict[str, Any]:
    return getattr(config, "extra_config", None) or {}


def _plugin_of(context: Any) -> Optional[str]:
    """The plugin that a backend is for, None: it is for a URL."""
    name = _plugin_name(context.url)
    return None if name is None else getattr(context, "plugin_name", None) or name


def _connector_options(extra: Dict[str, Any], plugin: Optional[str]) -> Dict[str, Any]:
    """What extra_config says as "tarn.NAME", and for this plugin alone as
    "remote_storage_plugin.PLUGIN.NAME". ValueError: a name that does not exist."""
    options: Dict[str, Any] = {}
    for prefix in ("tarn.", *([f"{_OWN}{plugin}."] if plugin is not None else [])):
        for key, value in extra.items():
            name = key[len(prefix) :]
            # What has a dot is of the plugin "tarn.NAME".
            if not key.startswith(prefix) or (
                prefix != "tarn." and ("." in name or name in _OF_LMCACHE)
            ):
                continue
            if name not in OPTIONS:
                raise ValueError(
                    f'extra_config has "{key}": there are {", ".join(prefix + o for o in OPTIONS)}'
                )
            options[name] = value
    return options
