"""Every stage as a command of its own, on plain inputs."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dinoskip.cli import main
from dinoskip.features import FeatureStore
from dinoskip.io.files import read_manifest
from tests.helpers.study import PLAIN
from tests.helpers.tiny import make_images
from visualize.gallery.layers import LAYERS

VIT = "timm:vit_tiny_patch16_224,pretrained=false,depth=2"
OTHER = "timm:vit_tiny_patch16_224,pretrained=false,depth=3,seed=1"


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("scenes") / "voc"
    assert main(["data", "scenes", str(out), "images=12", "size=64", "val_fraction=0.5", "-q"]) == 0
    return out


def results(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, object]]:
    capsys.readouterr()
    assert main([*arguments, *PLAIN, "--json", "-q"]) == 0
    rows: list[dict[str, object]] = json.loads(capsys.readouterr().out)
    return rows


def test_probe(voc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["eval", "probe", VIT, "--data", str(voc), "--out", str(tmp_path / "out")]
    rows = results(capsys, *command, "evaluate.probe.size=64", "evaluate.probe.epochs=1", "evaluate.multiscale=[1,2]")
    assert {row["block"] for row in rows if row["metric"] == "mIoU"} >= {"1", "2", "1+2"}
    assert all(0 <= float(str(row["value"])) <= 100 for row in rows if row["value"] is not None)
    models = [row for row in rows if not str(row["model"]).startswith("baseline")]
    assert {row["network"] for row in models} == {VIT}
    stores = sorted((tmp_path / "out" / "stages" / "features").rglob("store"))
    assert {FeatureStore.open(store).provenance["network"]["spec"] for store in stores} == {VIT}
    stages = {FeatureStore.open(store).provenance["images"]["split"]: read_manifest(store.parent) for store in stores}
    assert all(set(stage.info["made"]) == {"date", "version", "kernels"} for stage in stages.values())
    scored = stages["val"].info["record"]["external"]["voc2012: images of val"]
    assert {row["images"] for row in rows} == {f"voc {scored[:16]}"}


def test_probe_of_several_norms_and_seeds(voc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Norms are made of one store; the table shows means with their deviation."""
    out = tmp_path / "out"
    command = ["eval", "probe", VIT, "--data", str(voc), "--out", str(out), "--protocol", "fast"]
    command += ["--norm", "none,layer", "--seeds", "2", "evaluate.probe.size=64", "evaluate.probe.epochs=1"]
    rows = [row for row in results(capsys, *command) if not str(row["model"]).startswith("baseline")]
    assert {row["norm"] for row in rows} == {"none", "layer"}
    assert {row["protocol"] for row in rows} == {"fast, 1 epoch, fitted on train"}
    assert {row["seed"] for row in rows if "seed" in str(row["note"])} == {0, 1}
    assert len(list((out / "stages" / "features").rglob("store"))) == 2  # train and val, of norm none
    assert main([*command, *PLAIN, "-q"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(" ± ") == 2 * 2 + 2  # blocks × norms, and the chosen block of each norm
    assert "seed" not in shown


def test_probe_of_live_images(voc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["eval", "probe", VIT, "--data", str(voc), "--out", str(out)]
    small = ["evaluate.probe.size=48", "evaluate.probe.iterations=2", "--blocks", "2"]
    rows = results(capsys, *command, "--protocol", "dinov2", "evaluate.probe.stride=32", *small)
    assert rows[0]["protocol"] == "dinov2, 2 iterations, stride 32, fitted on train"
    assert rows[0]["resolution"] == "48 windows, stride 32, scored at label size"
    assert (rows[0]["block"], rows[0]["norm"], rows[0]["facet"], rows[0]["depth"]) == ("2", "final", "out", 2)
    assert not (out / "stages" / "features").exists()
    rows = results(capsys, *command, "--live", *small)
    assert rows[0]["protocol"] == "paper, live, 2 iterations, fitted on train"


def test_discovery_of_several_taus_and_facets_shows_each_by_block(
    voc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["eval", "tokencut", VIT, "--data", str(voc), "--out", str(out), "--workers", "1"]
    command += ["evaluate.tokencut.tau=[0.2, 0.5]", "evaluate.tokencut.facet=[key, value]"]
    command += ["evaluate.tokencut.lost_k=20", "evaluate.tokencut.overlays=1", "evaluate.tokencut.split=val"]
    rows = [row for row in results(capsys, *command) if not str(row["model"]).startswith("baseline")]
    assert len(rows) == 2 * 3 * 2  # facets, methods, blocks
    assert {row["facet"] for row in rows} == {"key", "value"}
    protocols = {row["protocol"] for row in rows}
    assert protocols == {"tokencut tau=0.2 eps=1e-05", "tokencut tau=0.5 eps=1e-05", "lost k=20"}
    assert len(list(out.rglob("overlays/*/*.png"))) == 2 * 2  # facets, blocks
    assert main([*command, *PLAIN, "-q"]) == 0
    shown = capsys.readouterr().out
    for facet in ("key", "value"):
        for protocol in protocols:
            by_block = shown.split(f"CorLoc, voc2012 val (read at {facet}, {protocol}), by block\n")[1].splitlines()[
                1:3
            ]
            mine = [row for row in rows if (row["facet"], row["protocol"]) == (facet, protocol)]
            assert [line.split()[:2] for line in by_block] == [[row["block"], f"{row['value']:.1f}"] for row in mine]


def test_photographs_without_boxes_are_no_data_of_tokencut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_images(tmp_path / "photos", 3)
    command = ["eval", "tokencut", VIT, "--data", str(tmp_path / "photos"), "--out", str(tmp_path / "out")]
    assert main(command) == 3
    error = capsys.readouterr().err
    assert "without boxes" in error
    assert f"dinoskip look --data {tmp_path / 'photos'}" in error
    assert "voc" not in error
    assert not (tmp_path / "out").exists()


def test_tokencut_of_chosen_blocks(voc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = [
        "eval",
        "tokencut",
        VIT,
        OTHER,
        "--data",
        str(voc),
        "--out",
        str(out),
        "--blocks",
        "2",
    ]
    rows = results(capsys, *command)
    models = [row for row in rows if not str(row["model"]).startswith("baseline: ")]
    assert [(row["metric"], row["block"], row["n"]) for row in models] == [("CorLoc", "2", 12)] * 2
    assert len({row["model"] for row in models}) == 2
    assert {str(row["model"]) for row in rows if row not in models} == {"baseline: full image", "baseline: centre box"}


def test_rows_say_how_many_broken_images_are_left_out(
    voc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    shutil.copytree(voc, data)
    broken = min((data / "VOC2012" / "Annotations").glob("*.xml"))
    broken.write_text(broken.read_text().replace("<xmax>", "<xmax>9"))
    command = ["eval", "tokencut", VIT, "--data", str(data), "--out", str(tmp_path / "out"), "--blocks", "2"]
    assert main([*command, "-q"]) == 3
    error = capsys.readouterr().err
    assert str(broken) in error
    assert "--skip-broken" in error
    rows = results(capsys, *command, "--skip-broken")
    assert {(row["n"], row["left_out"]) for row in rows} == {(11, 1)}


def test_knn_on_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for split, count in (("train", 6), ("val", 2)):
        for shade, name in ((40, "dark"), (200, "light")):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for index in range(count):
                pixels = np.clip(rng.normal(shade, 20, (40, 40, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / "data" / split / name / f"{index}.png")
    command = ["eval", "knn", VIT, "--data", str(tmp_path / "data"), "--out", str(tmp_path / "out")]
    rows = results(capsys, *command, "evaluate.knn.k=[3]", "evaluate.knn.size=32")
    models = [row for row in rows if not str(row["model"]).startswith("baseline: ")]
    assert {row["block"] for row in models} == {"1", "2"}
    assert all(row["value"] == 100 for row in models)  # black and white are told apart even by random weights


def test_gallery_of_any_folder(voc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = voc / "VOC2012" / "JPEGImages"
    out = tmp_path / "out"
    command = ["gallery", VIT, OTHER, "--data", str(images), "--out", str(out)]
    assert main([*command, "gallery.first=2", "evaluate.probe.size=64", "-q"]) == 0
    front = Path(capsys.readouterr().out.split("page: ")[1].strip())
    assert (front, "url=gallery/index.html" in front.read_text()) == (out.resolve() / "index.html", True)
    page = out / "gallery" / "index.html"
    assert page.is_file()
    sheets = sorted(path.name for path in page.parent.glob("img/*-m*"))
    layers = sorted(key for key, one in LAYERS.items() if one.source in {"store", "discoveries", "attention"})
    assert sheets == [f"{layer}-m{column}-i{row:03d}.png" for layer in layers for column in (0, 1) for row in (0, 1)]
    for folder, image in zip("ab", sorted(images.iterdir())[:2], strict=True):
        (tmp_path / "nested" / folder).mkdir(parents=True)
        shutil.copy(image, tmp_path / "nested" / folder)
    command[command.index(str(images))] = str(tmp_path / "nested")
    assert main([*command, "--single-file", "evaluate.probe.size=64", "-q"]) == 0
    alone = out / "gallery" / "index.html"
    assert not list(alone.parent.glob("img/*"))
    assert '"tags": ["a", "b"]' in alone.read_text()  # sub-folders are classes to filter by


def test_features_export_and_models(voc: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = voc / "VOC2012" / "JPEGImages"
    out = tmp_path / "features"
    command = ["features", "export", VIT, "--data", str(images), "--out", str(out)]
    assert main([*command, "--blocks", "1,2", "--facet", "key", "--mode", "native", "-q"]) == 0
    store = FeatureStore.open(out)
    assert (store.facet, tuple(store.blocks), len(store.ids)) == ("key", (1, 2), 12)
    assert store.verify() == []
    assert main(["verify", str(out)]) == 0
    assert main(["models", "show", VIT]) == 0
    assert "depth" in capsys.readouterr().out
    assert main(["models", "list"]) == 0
    assert "skipless_vit_small_patch16_224" in capsys.readouterr().out


def test_convert_a_dino_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    from dinoskip.models import create_model, load_backbone

    model = create_model("vit_tiny_patch16", depth=2, img_size=32)
    state = {f"module.backbone.{name}": tensor for name, tensor in model.state_dict().items()}
    torch.save({"teacher": state, "epoch": 3}, tmp_path / "dino.pth")
    out = tmp_path / "w.safetensors"
    assert main(["models", "convert", f"dino:{tmp_path / 'dino.pth'}", str(out)]) == 0
    capsys.readouterr()
    assert load_backbone(f"weights:{out}").weights_hash == load_backbone(f"dino:{tmp_path / 'dino.pth'}").weights_hash
    assert main(["models", "convert", VIT, str(out)]) == 2


def test_composed_kinds_need_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    command = [
        "eval",
        "tokencut",
        "timm:vit_tiny_patch16_224,pretrained=false",
        "--out",
        str(tmp_path / "o"),
    ]
    assert main([*command, "--kind", "scenes", "--data", str(tmp_path)]) == 2
    assert "kind scenes is synthetic" in capsys.readouterr().err
    assert main(command) == 2
    assert "--data: is needed" in capsys.readouterr().err
