"""How LMCache finds the connector: by `tarn://` and `tarns://` URLs and as the storage plugin `tarn` (or `tarn.NAME`)."""

from __future__ import annotations

from typing import Any, Dict, Optional

from . import _base
from .connector import TarnConnector

_SCHEMES = ("tarn://", "tarns://", "tarn+sentinel://", "tarns+sentinel://")
_PLUGIN = "plugin://"
OPTIONS = ("get_threads", "put_threads", "pin_ms", "put_backlog", "replicas", "namespace")


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
        """ValueError: the plugin has no URL, or an option is wrong; ConnectionFailed and the like: no server (LMCache logs it
        and tries again later)."""
        extra: Dict[str, Any] = getattr(context.config, "extra_config", None) or {}
        url = context.url
        plugin = _plugin_name(url)
        if plugin is not None:
            plugin = getattr(context, "plugin_name", None) or plugin
            name = f"remote_storage_plugin.{plugin}.url"
            url = extra.get(name)
            if not isinstance(url, str) or not url.startswith(_SCHEMES):
                raise ValueError(f'extra_config needs "{name}": "tarn://host:port", not {url!r}')
        options = {}
        for key, value in extra.items():
            if key.startswith("tarn."):
                option = key[len("tarn.") :]
                if option not in OPTIONS:
                    raise ValueError(f'extra_config has "{key}": there are {", ".join("tarn." + o for o in OPTIONS)}')
                options[option] = value
        return TarnConnector(
            url, context.loop, context.local_cpu_backend, context.config, getattr(context, "metadata", None), **options
        )
