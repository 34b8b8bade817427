"""`genwright pull`: list and fetch models."""

import json
from typing import Annotated

import typer

from genwright.cli.app import Json, new_app

app = new_app()


@app.command()
def pull(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="What to fetch: a name from the list, or hf:ORG/NAME[@REVISION][:FILE.gguf]."),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the models that can be fetched by name, or fetch some and print their paths."""
    from genwright.images.metrics import inception_download as inception
    from genwright.text.catalogue import CATALOGUE, find, pull

    if names:
        paths = {name: str(inception.pull() if name == "inception" else pull(name)) for name in names}
        print(json.dumps(paths) if as_json else "\n".join(paths.values()))
        return
    rows = [{"name": name, "about": entry.about, "path": find(name)} for name, entry in CATALOGUE.items()]
    fetched = inception.find()
    rows.append({"name": "inception", "about": inception.ABOUT, "path": None if fetched is None else str(fetched)})
    if as_json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{row['name']:<10} {row['about']} ({row['path'] or 'not fetched yet'})")
    print("hf:ORG/NAME[@REVISION][:FILE.gguf]  a Hugging Face repository's safetensors or .bin files, or a GGUF of it")
