"""Where a server listens: opened before the model is loaded, so that what cannot work is told at once."""

from __future__ import annotations

import os
import socket
import ssl
import stat
from dataclasses import dataclass

from ...core.errors import HeadstockError, InvalidInput

LOOPBACK = ("127.0.0.1", "::1", "localhost")
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A host and port, or a Unix socket."""

    host: str | None = None
    """None is `DEFAULT_HOST`."""
    port: int | None = None
    """0 takes one that is free, None is `DEFAULT_PORT`."""
    uds: str | None = None
    """Path of a Unix socket, which only this user may use; it has no host and no port."""
    ssl_keyfile: str | None = None
    ssl_certfile: str | None = None
    ssl_ca_certs: str | None = None
    """Clients must show a certificate that one of these signed."""

    def __post_init__(self) -> None:
        if self.port is not None and not 0 <= self.port <= 65535:
            raise InvalidInput("port", f"must be from 0 to 65535, not {self.port}")
        for name in ("host", "uds"):
            if getattr(self, name) == "":
                raise InvalidInput(name, "is empty")
        for name in ("host", "port"):
            if self.uds is not None and getattr(self, name) is not None:
                raise InvalidInput(name, f"has no meaning beside uds: the server listens on {self.uds} alone")
        if self.ssl_keyfile and not self.ssl_certfile:
            raise InvalidInput("ssl_certfile", "is needed beside ssl_keyfile")
        if self.ssl_ca_certs and not self.ssl_certfile:
            raise InvalidInput("ssl_certfile", "is needed beside ssl_ca_certs")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        return self.uds is not None or self.place[0] in LOOPBACK

    @property
    def place(self) -> tuple[str, int]:
        """Host and port, where it is no Unix socket."""
        return self.host or DEFAULT_HOST, DEFAULT_PORT if self.port is None else self.port

    def check_tls(self) -> None:
        """Raise `InvalidInput` where certificate and key cannot be used."""
        for name in ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs"):
            path = getattr(self, name)
            if path is not None and not os.access(path, os.R_OK):
                raise InvalidInput(name, f"{path} cannot be read")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            if self.ssl_certfile:
                context.load_cert_chain(self.ssl_certfile, self.ssl_keyfile, password=_no_password)
        except (ssl.SSLError, OSError) as error:
            raise InvalidInput("ssl_certfile", f"cannot be used with its key: {error}") from error
        try:
            if self.ssl_ca_certs:
                context.load_verify_locations(self.ssl_ca_certs)
        except (ssl.SSLError, OSError) as error:
            raise InvalidInput("ssl_ca_certs", f"cannot be used: {error}") from error

    def open(self) -> socket.socket:
        """A bound socket that does not listen yet. Raises `HeadstockError` where the place is taken."""
        try:
            return self._open_unix(self.uds) if self.uds is not None else self._open_tcp()
        except (OSError, UnicodeError) as error:  # the last for what can be no host's name
            place = self.uds if self.uds is not None else "{}:{}".format(*self.place)
            problem = getattr(error, "strerror", None) or error
            raise HeadstockError(f"cannot listen on {place}: {problem}") from error

    def url(self, listening: socket.socket) -> str:
        """How to reach it."""
        if self.uds is not None:
            return f"unix:{self.uds}"
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'https' if self.ssl_certfile else 'http'}://{shown}:{port}"

    def _open_tcp(self) -> socket.socket:
        family, kind, protocol, _, address = socket.getaddrinfo(
            *self.place, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
        try:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            made.bind(address)
        except OSError:
            made.close()
            raise
        return made

    def _open_unix(self, path: str) -> socket.socket:
        _remove_stale(path)
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            made.bind(path)
        except OSError:
            made.close()
            raise
        finally:
            os.umask(before)
        return made


def _remove_stale(path: str) -> None:
    """Remove a socket that a server left behind; nothing else, and none that somebody listens on."""
    if not os.path.exists(path) or not stat.S_ISSOCK(os.stat(path).st_mode):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(path) != 0:
            os.unlink(path)


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted; give one without a password")
