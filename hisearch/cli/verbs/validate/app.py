"""The commands of ``hisearch validate``."""

from __future__ import annotations

import typer

from hisearch.cli.verbs.validate import cache, decisions, served

app = typer.Typer(help="Hold one part of hisearch against recorded truth.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    pass


app.command("cache")(cache.cache)
app.command("scheduler")(decisions.scheduler)
app.command("router")(decisions.router)
app.command("silicon")(served.silicon)
app.command("e2e")(served.e2e)
app.command("batch")(served.batch)
app.command("open-loop")(served.open_loop)
app.command("mlperf")(served.mlperf)
app.command("runs")(served.runs)
