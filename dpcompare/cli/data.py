"""`dpcompare data`: prepare datasets."""

from __future__ import annotations

from pathlib import Path

import click

from dpcompare.cli.output import print_json
from dpcompare.system.terminal_text import pluralize, printable


@click.group()
def data() -> None:
    """Prepare datasets."""


@data.command()
@click.argument("source")
@click.argument("dest", type=click.Path(path_type=Path))
@click.option("--image-size", type=int, required=True, help="Side of the square images in pixels.")
@click.option("--margin", type=int, default=0, help="Pixels by which images are stored larger, for --augment crop.")
@click.option("--skip-corrupt", is_flag=True, help="Leave out images that cannot be decoded, and count them.")
@click.option("--follow-links", is_flag=True, help="Read images to which links lead that leave the dataset's folder.")
@click.option(
    "--processes", type=click.IntRange(min=1), help="How many images are decoded at a time.  [default: one per core]"
)
@click.option("--json", "as_json", is_flag=True, help="Print the manifest as one JSON object.")
def prepare(
    source: str,
    dest: Path,
    image_size: int,
    margin: int,
    skip_corrupt: bool,
    follow_links: bool,
    processes: int | None,
    as_json: bool,
) -> None:
    """Decode and resize every image of SOURCE once into the store DEST.

    SOURCE is a folder of images (CLASS/*.jpg, or the same below train/ and validation/), the original Stanford
    Dogs layout, a Hugging Face dataset (hf:NAME, of the hub or a folder), or one of the built-in datasets digits and
    synthetic.
    """
    from dpcompare.cli.progress import data_progress
    from dpcompare.data.prepare import prepare as prepare_store

    with data_progress() as images_done:
        store = prepare_store(
            source,
            dest,
            image_size,
            margin=margin,
            skip_corrupt=skip_corrupt,
            follow_links=follow_links,
            num_processes=processes,
            progress=images_done,
        )
    manifest = store.manifest
    if as_json:
        print_json({"path": str(dest), "sha256": manifest.sha256, **manifest.model_dump(mode="json")})
        return
    counts = ", ".join(f"{name} {split.count}" for name, split in manifest.splits.items())
    click.echo(f"{dest}: images of {image_size} px in {len(manifest.classes)} classes: {counts}")
    if manifest.skipped:
        click.echo(
            f"skipped: {pluralize(len(manifest.skipped), 'image')} that cannot be decoded, see {dest}/manifest.json"
        )
    for note in (*manifest.notes, *manifest.duplicates.remarks()):
        click.echo(printable(note))
    click.echo(f"sha256 {manifest.sha256}")
