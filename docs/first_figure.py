"""README's first figure: PCA of every block of the two shipped networks, on photographs that scikit-image carries.

``python docs/first_figure.py`` writes docs/images/first.png. The photographs are in the public domain: astronaut
(NASA), chelsea and coffee (CC0), rocket (SpaceX).
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import skimage
from PIL import Image

from dinoskip.data.folders import ImageFolder
from dinoskip.features import Transform, export
from dinoskip.models import load_backbone
from dinoskip.settings.shipped import SHIPPED
from visualize.colours import pca_views
from visualize.gallery.sheets import contact_sheet
from visualize.rasters import photo

OUT = Path(__file__).parent / "images" / "first.png"
PHOTOGRAPHS = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg")
SIDE = 192  # pixels: 24 x 24 patches, three times the size of training
CELL = 72  # pixels of a picture
COLOURS = 256


def main() -> None:
    """Write the figure: a part for each network, rows are photographs, columns are blocks; colours are aligned."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        images = ImageFolder(Path(skimage.__file__).parent / "data", PHOTOGRAPHS)
        stores = [
            export(
                load_backbone(network.spec), images, place / network.name, "all", norm="final", cls=False,
                transform=Transform(mode="square", size=SIDE),
            )
            for network in SHIPPED.values()
        ]  # fmt: skip
        views, parts = pca_views(stores, stores[0].ids), []
        for number, network in enumerate(SHIPPED.values()):
            colours = views.aligned[number]
            cells: list[list[np.ndarray | None]] = [
                [photo(images.path(row), 2 * CELL)[0], *(colours[block][row] for block in sorted(colours))]
                for row in range(len(images))
            ]
            heads = ["photograph", *(f"block {block}" for block in sorted(colours))]
            title = network.words.removeprefix("pretrained, ")
            contact_sheet(cells, heads, place / f"{number}.png", title=title.capitalize(), cell=CELL)
            parts.append(Image.open(place / f"{number}.png").convert("RGB"))
        sheet = Image.new("RGB", (max(part.width for part in parts), sum(part.height for part in parts)), "white")
        top = 0
        for part in parts:
            sheet.paste(part, (0, top))
            top += part.height
        sheet.quantize(COLOURS, dither=Image.Dither.NONE).save(OUT, optimize=True)
    print(f"{OUT}: {OUT.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
