"""``hisearch dashboard``: runs in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dashboard(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN_DIR…", help="Folders of runs, ended or going on.")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8080,
) -> None:
    """Show runs in a browser: progress, reports, comparisons.

    Serves until interrupted, and only reads the folders; a run that is still going on is followed. With the extra
    `dashboard`, optuna-dashboard shows the trials as well.
    """
    from hisearch.api.dashboard import serve, url_of
    from hisearch.cli import output

    server = serve(runs, host, port)
    output.say(url_of(host, server.server_port))
    output.note("serving until interrupted (Ctrl+C)")
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        output.note("stopped")
    finally:
        server.server_close()
