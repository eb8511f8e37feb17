"""tarn-gateway: python3 -m tarn.gateway."""

from __future__ import annotations

import asyncio
import logging
import sys

try:
    from .app import serve
    from .options import Options, parse
    from .routers import make_router
except ImportError as missing:
    sys.exit(
        f"tarn-gateway: {missing}; it needs aiohttp, redis and prometheus_client, in Debian"
        " python3-aiohttp, python3-redis and python3-prometheus-client"
    )

__all__ = ["main"]


async def _run(options: Options) -> None:
    router = make_router(options)
    await router.start()
    try:
        await serve(options, router)
    finally:
        await router.close()


def main() -> int:
    """The program's exit status: 1 where an option cannot be kept."""
    options = parse()
    logging.basicConfig(
        format="%(asctime)s %(name)s: %(message)s", level=getattr(logging, options.log.upper())
    )
    try:
        asyncio.run(_run(options))
    except (OSError, ValueError) as error:
        print(f"tarn-gateway: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
