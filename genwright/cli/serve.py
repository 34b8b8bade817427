"""`genwright serve`: answer HTTP clients of OpenAI's and Anthropic's APIs."""

import importlib.util
from functools import partial

import typer

from genwright.cli.app import new_app
from genwright.cli.flags import expand
from genwright.cli.options import AlsoModel, ModelArgument, chosen_model
from genwright.cli.progress import bar
from genwright.errors import UserError
from genwright.serve.server_settings import ServerSettings
from genwright.text.catalogue import DEFAULT
from genwright.text.settings import EngineConfig

app = new_app()
PACKAGES = ("starlette", "uvicorn", "uvloop", "httptools", "prometheus_client")


@app.command()
@expand
def serve(
    config: EngineConfig,
    settings: ServerSettings,
    model: ModelArgument = DEFAULT,
    also_model: AlsoModel = None,
) -> None:
    """Serve a model over HTTP, until SIGTERM or Ctrl-C."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise UserError(f"The server needs {', '.join(missing)}; install them with pip install 'genwright[serve]'.")
    from genwright.serve.server import serve as run

    model = chosen_model(model, also_model)
    raise typer.Exit(run(model, config, settings, partial(bar, "Loading")))
