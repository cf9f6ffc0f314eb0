"""The gallery of 40 images x 12 blocks x 2 models: time, size, and the same pictures through matplotlib.

Aim: a few megabytes, and at least 20 times faster than the same content as subplots: a figure an image and layer, a
row a block, the photograph and the models as columns, masks over the photograph with their boxes, scores as titles,
saved as PNG. Both get the same ready arrays (PCA colours, eigenvectors, masks, predictions, attention heads) and count
the scores; matplotlib draws a part of the images, and its time is scaled up by their number. PCA, three ways, and the
features for similarity are timed beside it. All times are processor seconds, so that others at work on the machine do
not count. Tokens are smooth random fields on the 28 x 28 grid of a ViT-S/16 at 448 pixels, photographs scikit-image's.

Run: python -m benchmarks.bench_gallery [--images 40] [--part 1] [--grid 28]     (about a minute of processor time)
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from pathlib import Path

import numpy as np
import scipy.ndimage
from PIL import Image
from skimage import data as photographs

from dinoskip.data.segmentation import voc_palette
from dinoskip.runtime.randomness import numpy_rng
from visualize.colours import PcaViews, pca_views
from visualize.gallery import Classes, Discovery, GalleryConfig, GalleryImage, GalleryModel, build_gallery
from visualize.gallery.scores import best_iou, image_scores, mean_cosine
from visualize.gallery.similarity import page_features

BLOCKS, HEADS, CHANNELS, CLASSES = 12, 6, 384, 21
Maps = dict[int, tuple[np.ndarray, str]]  # block -> map and title
PHOTOS = ("astronaut", "coffee", "chelsea", "rocket")


class Store:
    """Tokens of every image, block by block, as a feature store gives them; made when asked for, from few draws."""

    def __init__(self, ids: tuple[str, ...], side: int, seed: int) -> None:
        self.ids, self.blocks, self.side = ids, tuple(range(1, BLOCKS + 1)), side
        rng = numpy_rng(seed, "tokens")
        self.fields = smooth(rng, (64, side, side), 2.0).reshape(64, -1).astype(np.float32)
        self.directions = rng.standard_normal((BLOCKS + 1, 16, CHANNELS), np.float32)
        self.noise = 0.5 * rng.standard_normal((2 * side * side, CHANNELS), np.float32)

    def grid(self, index: int) -> tuple[int, int]:
        """Return the rows and columns of tokens of an image."""
        return self.side, self.side

    def tokens(self, block: int, index: int) -> np.ndarray:
        """Smooth fields along shared directions of falling strength, and noise."""
        chosen = self.fields[(5 * index + 3 * block + np.arange(16)) % len(self.fields)].T
        start = (37 * index + 11 * block) % len(chosen)
        signal = (chosen * np.arange(1, 17, dtype=np.float32) ** -0.5) @ self.directions[block]
        return (signal + self.noise[start : start + len(chosen)]).astype(np.float16)


def smooth(rng: np.random.Generator, shape: tuple[int, ...], width: float) -> np.ndarray:
    """Smooth fields over the last two axes, of unit spread."""
    fields = scipy.ndimage.gaussian_filter(rng.standard_normal(shape), (0,) * (len(shape) - 2) + (width, width))
    return np.asarray(fields / fields.std(axis=(-2, -1), keepdims=True))


def column(name: str, ids: tuple[str, ...], seed: int, side: int) -> GalleryModel:
    """A model with everything a column can have."""
    model = GalleryModel(name, Store(ids, side, seed), {}, {}, (), "", {})
    for block in range(1, BLOCKS + 1):
        rng = numpy_rng(seed, "maps", block)
        predictions, discoveries, attention = ({} for _ in range(3))
        for identity in ids:
            logits = smooth(rng, (CLASSES, 4 * side, 4 * side), 10.0)
            predictions[identity] = logits.argmax(0).astype(np.uint8)
            vector = smooth(rng, (24, 32), 2.0)
            box = (64.0, 32.0, 384.0, 288.0)
            discoveries[identity] = Discovery(box, vector, vector > vector.mean(), 16)
            attention[identity] = np.exp(2 * smooth(rng, (HEADS, side, side), 1.0)) / side**2 / 7
        for mapping, maps in ((model.predictions, predictions), (model.discoveries, discoveries)):
            mapping[block] = maps  # type: ignore[index]
        model.attention[block] = attention  # type: ignore[index]
    return model


def images(folder: Path, count: int) -> list[GalleryImage]:
    """``count`` crops of four photographs, 500 x 375, with labels and a box."""
    pictures = []
    for number in range(count):
        pixels = np.ascontiguousarray(getattr(photographs, PHOTOS[number % len(PHOTOS)])())
        path = folder / f"{number:03d}.jpg"
        Image.fromarray(np.roll(pixels, 7 * number, axis=1)).resize((500, 375)).save(path, quality=90)
        label = np.zeros((375, 500), np.uint8)
        label[60:300, 80:400] = 1 + number % (CLASSES - 1)
        pictures.append(GalleryImage(f"{number:03d}", path, label, np.array([[80, 60, 400, 300]], np.float32)))
    return pictures


def layers_of(model: GalleryModel, views: PcaViews, number: int, row: int, image: GalleryImage) -> dict[str, Maps]:
    """Every map of one model and image by layer and block, with the title that its score gives."""
    maps: dict[str, Maps] = {}
    for block in model.predictions:
        cut, heads = model.discoveries[block][image.id], model.attention[block][image.id]
        unturned, prediction = views.unturned[number].get(block), model.predictions[block][image.id]
        scores = image_scores(prediction, image.label)
        cosine = f"cosine {mean_cosine(model.store.tokens(block, row)):.2f}"
        maps = {"pca": (views.aligned[number][block][row], cosine), "image": (views.image[number][block][row], cosine)}
        maps |= {} if unturned is None else {"own": (unturned[row], cosine)}
        maps["probe"] = (prediction, f"mIoU {scores['miou']:.0f} %")
        iou = f"IoU {best_iou(cut.box, image.boxes):.2f}"
        maps |= {"vector": (cut.eigenvector, iou), "cut": (cut.mask, iou)}
        each = [heads.mean(0), *heads]
        maps |= {f"head {head}": (attn, f"peak {100 * attn.max():.1f} %") for head, attn in enumerate(each)}
        for name, attn in maps.items():
            maps.setdefault(name, {})[block] = attn
    return maps


def by_matplotlib(models: list[GalleryModel], shown: list[GalleryImage], views: PcaViews) -> tuple[int, int]:
    """Draw all maps of ``shown`` as subplots; return the number of maps and bytes of PNG."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Rectangle

    count = size = 0
    for row, image in enumerate(shown):
        photo = np.asarray(Image.open(image.path))
        columns = [layers_of(model, views, number, row, image) for number, model in enumerate(models)]
        for layer in columns[-1]:
            figure, axes = plt.subplots(BLOCKS, 1 + len(models), figsize=(6, 2 * BLOCKS))
            for axis in axes.flat:
                axis.set_axis_off()
            axes[0, 0].imshow(image.label if layer == "probe" else photo)
            for number, column in enumerate(columns):
                for at, (block, (values, title)) in enumerate(column.get(layer, {}).items()):
                    axis, over = axes[at, 1 + number], layer == "cut"
                    if over:
                        axis.imshow(photo)
                        for x1, y1, x2, y2 in (*image.boxes, models[number].discoveries[block][image.id].box):
                            axis.add_patch(Rectangle((x1, y1), x2 - x1, y2 - y1, fill=False))
                    height, width = values.shape[:2]
                    extent = (0, 16 * width, 16 * height, 0) if over else None
                    axis.imshow(values, interpolation="nearest", alpha=0.5 if over else None, extent=extent)
                    axis.set_title(title, fontsize=8)
                    count += 1
            stream = io.BytesIO()
            figure.savefig(stream, format="png")
            size += stream.tell()
            plt.close(figure)
    return count, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=40)
    parser.add_argument("--part", type=int, default=1, help="images that matplotlib draws")
    parser.add_argument("--grid", type=int, default=28, help="tokens a side")
    args = parser.parse_args()
    ids = tuple(f"{number:03d}" for number in range(args.images))
    models = [column(name, ids, seed, args.grid) for seed, name in enumerate(("skip", "skipless"))]
    classes = Classes([f"class {number}" for number in range(CLASSES)], voc_palette())
    with tempfile.TemporaryDirectory() as scratch:
        shown = images(Path(scratch), args.images)
        start = time.process_time()
        views = pca_views([model.store for model in models], ids)
        print(f"PCA three ways, reading the made-up tokens: {time.process_time() - start:.1f} s")
        start = time.process_time()
        page_features(models[0].store, ids[:1])
        print(f"features for similarity, an image and model: {time.process_time() - start:.2f} s")
        ours = {}
        for name, config in (
            ("folder", GalleryConfig(first=args.images, similarity=0)),
            ("folder with features of 3 images", GalleryConfig(first=args.images)),
            ("single file with them", GalleryConfig(first=args.images, single_file=True)),
        ):
            out = Path(scratch) / name
            start = time.process_time()
            build_gallery(models, shown, out, config, classes=classes, views=views)
            ours[name] = time.process_time() - start
            files = [path for path in out.rglob("*") if path.is_file()]
            size = sum(path.stat().st_size for path in files) / 1e6
            print(f"{name}: {ours[name]:.1f} s, {size:.1f} MB, {len(files)} files", flush=True)
        by_matplotlib(models, shown[:0], views)  # imports are not counted
        start = time.process_time()
        count, size = by_matplotlib(models, shown[: args.part], views)
        taken = (time.process_time() - start) * args.images / args.part
        print(f"matplotlib: {count} maps of {args.part} of {args.images} images, scaled: {taken:.0f} s, "
              f"{size * args.images / args.part / 1e6:.0f} MB")  # fmt: skip
        print(f"ratio: {taken / ours['folder']:.1f} (aim: 20)")


if __name__ == "__main__":
    main()
