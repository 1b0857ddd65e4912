"""``noetl-celery console``: serves the console and the HTTP API until it is told to stop."""

from __future__ import annotations

import signal
import socket
from typing import Annotated

import typer

from noetl_celery.cli.console import note
from noetl_celery.errors import InputError, ServiceError
from noetl_celery.settings import PREFIX, TOKEN_EXAMPLE, load

PORT = 8080


def console(
    ctx: typer.Context,
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0: all of this machine.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = PORT,
    behind_proxy: Annotated[
        bool, typer.Option("--behind-proxy", help="Believe X-Forwarded-For and X-Forwarded-Proto of a proxy in front.")
    ] = False,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let everybody of this machine in; only with a loopback address.")
    ] = False,
) -> None:
    """Serves the console, the HTTP API (/api) and metrics until Ctrl-C; NOETL_CONSOLE_TOKEN is what users have to know.

    Any number of them may run at the same time.
    """
    import uvicorn

    from noetl_celery.web.access import LOOPBACK
    from noetl_celery.web.app import create

    if ctx.args:
        raise InputError(f"console takes no argument {ctx.args[0]!r}")
    settings = load()
    token = None if no_token else settings.console_token
    if token is None and not no_token:
        raise InputError(f"{PREFIX}CONSOLE_TOKEN is not set", hint=f"{TOKEN_EXAMPLE}; on your own machine: --no-token")
    if token is None and host not in LOOPBACK:
        raise InputError(f"--no-token serves this machine only, not {host}", hint=f"set {PREFIX}CONSOLE_TOKEN")
    app = create(settings, token=None if token is None else token.get_secret_value())
    listening = _listen(host, port)
    place, at = listening.getsockname()[:2]
    note(f"console on http://{f'[{place}]' if ':' in place else place}:{at}  (Ctrl-C ends it)")
    # A request may take as long as a stream of events does: what is still open is cut when it is told to stop.
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        proxy_headers=behind_proxy,
        forwarded_allow_ips="*" if behind_proxy else None,
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # The server takes them while it runs; it sends them again at its end, when they mean nothing any more.
        signal.signal(number, lambda *_: None)
    uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With its protocol named asyncio sends small parts at once (TCP_NODELAY): else each answer takes 40 ms longer.
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # from now on nobody is turned away
    except OSError as error:
        raise ServiceError(f"cannot listen on {host}:{port}: {error.strerror or error}", hint="choose --port") from None
    return listening
