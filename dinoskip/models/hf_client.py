"""Downloads from the Hugging Face hub: quiet, and where it cannot be reached, at once from the cache or not at all."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

CONNECT_SECONDS = 5.0  # to wait for the hub; its own client would try for up to a minute, in a dozen lines


def _reachable(endpoint: str) -> bool:
    place = urlsplit(endpoint)
    if place.scheme in getproxies():
        return True  # that is for the proxy to say
    try:
        socket.create_connection((place.hostname or "", place.port or 443), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


@contextmanager
def hub_client() -> Iterator[None]:
    """Let the hub's client work inside; :class:`ConnectionError` for what can neither be reached nor is in its cache.

    Where the hub cannot be reached, the client is offline inside: it takes what is in its cache without asking.
    """
    from huggingface_hub import constants  # heavy

    logger, offline = logging.getLogger("huggingface_hub"), constants.HF_HUB_OFFLINE
    level, reachable = logger.level, offline or _reachable(constants.ENDPOINT)
    logger.setLevel(logging.ERROR)
    constants.HF_HUB_OFFLINE = offline or not reachable
    try:
        yield
    except OSError as error:
        if reachable:
            raise
        raise ConnectionError(
            f"{constants.ENDPOINT} cannot be reached, and it is not in the cache {constants.HF_HUB_CACHE}"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = offline
        logger.setLevel(level)
