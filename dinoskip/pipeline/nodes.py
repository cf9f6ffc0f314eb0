"""From a study to its nodes: which stages exist for which variant, what each reads and needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dinoskip import __version__
from dinoskip.config import dump
from dinoskip.data.datasets import DatasetConfig
from dinoskip.pipeline.external import fingerprint_dataset, fingerprint_spec
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.stages import STAGES
from dinoskip.pipeline.study import Study, Variant
from dinoskip.training.dino import FREE_KEYS

# Settings of a pretraining that are not part of its key. ``keep_epochs`` is: it changes no number, but it says which
# checkpoints the output holds, and the weights stage reads those.
_FREE = tuple(key for key in FREE_KEYS if key != "keep_epochs")


def build_nodes(study: Study, variants: tuple[Variant, ...]) -> list[Node]:
    """Every node of a study, in order of execution."""
    return _Builder(study, variants).build()


class _Builder:
    def __init__(self, study: Study, variants: tuple[Variant, ...]) -> None:
        self.study, self.variants = study, variants
        self.nodes: dict[str, Node] = {}

    def add(self, node_id: str, stage: str, settings: Mapping[str, Any], **kw: Any) -> str:
        if node_id not in self.nodes:
            self.nodes[node_id] = Node(node_id, stage, settings, version=STAGES[stage].version, **kw)
        return node_id

    def build(self) -> list[Node]:
        models: list[Any] = []
        for variant in self.variants:
            if variant.backbone is not None:
                models.append((variant, 0, {}, {"backbone": variant.backbone}))
                continue
            run = self._pretrain(variant)
            for epoch in self._epochs():
                weights = self.add(
                    f"weights/{variant.name}/ep{epoch}",
                    "weights",
                    {"epoch": epoch},
                    inputs={"run": run},
                    variant=variant.name,
                )
                models.append((variant, epoch, {"weights": weights}, {}))
        for variant, epoch, inputs, settings in models:
            self._evaluate(variant, epoch, inputs, settings)
        analysis = self._analyze(models)
        gallery = self._gallery(models)
        self._report(gallery, analysis)
        position = list(STAGES)
        return sorted(self.nodes.values(), key=lambda node: position.index(node.stage))

    # --- data -------------------------------------------------------------------------------------------

    def _data(self, name: str, usage: str, split: str = "") -> dict[str, Any]:
        """How a node takes in a data set: as the output of a data stage, or by the content of outside files."""
        config: DatasetConfig = self.study.data[name]
        settings = {"dataset": {"name": name, "kind": config.kind, "split": split}}
        if config.kind == "scenes":
            node = self.add(f"data/{name}", "data", {"scenes": dump(config)})
            return {
                "settings": settings,
                "inputs": {"data": node},
                "runtime": {"config": dump(config)},
                "external": None,
            }
        settings["dataset"].update({key: value for key, value in dump(config).items() if key not in {"root", "kind"}})

        def external() -> dict[str, str]:
            return {f"data.{name}": fingerprint_dataset(config, usage, split)}

        return {"settings": settings, "inputs": {}, "runtime": {"config": dump(config)}, "external": external}

    def _epochs(self) -> tuple[int, ...]:
        assert self.study.pretrain is not None
        return self.study.evaluate.epochs or (self.study.pretrain.epochs,)

    # --- per variant ------------------------------------------------------------------------------------

    def _pretrain(self, variant: Variant) -> str:
        assert self.study.pretrain is not None
        assert variant.model is not None
        assert variant.optimizer is not None
        data = self._data(self.study.pretrain.dataset, "images", "train")
        recipe = dump(self.study.pretrain)
        recipe.pop("dataset")
        free = {key: recipe.pop(key) for key in _FREE}
        data = {**data, "runtime": {**data["runtime"], "free": free}}
        settings = {
            "seed": self.study.seed,
            "model": dump(variant.model),
            "optimizer": dump(variant.optimizer),
            "pretrain": recipe,
        }
        return self._with_data(f"pretrain/{variant.name}", "pretrain", settings, data, {}, variant.name)

    def _with_data(
        self,
        node_id: str,
        stage: str,
        settings: Mapping[str, Any],
        data: Mapping[str, Any],
        inputs: Mapping[str, str],
        variant: str,
        more: Callable[[], Mapping[str, str]] | None = None,
    ) -> str:
        outside = [source for source in (data["external"], more) if source is not None]

        def external() -> dict[str, str]:
            return {key: value for source in outside for key, value in source().items()}

        return self.add(
            node_id,
            stage,
            {**settings, **data["settings"]},
            inputs={**inputs, **data["inputs"]},
            runtime=data["runtime"],
            external=external if outside else None,
            variant=variant,
        )

    def _context(self, variant: Variant, epoch: int) -> dict[str, Any]:
        """The fields of a result row that say which model it is of."""
        context = {"model": variant.name, "epoch": epoch, "seed": self.study.seed, "version": __version__}
        if variant.model is not None and variant.optimizer is not None:
            context |= {"initialisation": variant.model.init.name, "optimizer": variant.optimizer.name}
        return context

    def _features(
        self,
        variant: Variant,
        epoch: int,
        model: tuple[dict[str, str], dict[str, Any]],
        use: str,
        name: str,
        split: str,
        settings: Mapping[str, Any],
    ) -> str:
        inputs, spec = model
        data = self._data(name, "images" if use == "knn" else use, split)
        evaluate = self.study.evaluate
        full = {
            **settings,
            **spec,
            "norm": evaluate.norm if settings["facet"] == "out" else "none",  # projections have no norm after them
            "blocks": _blocks(evaluate.blocks),
            "use": use,
        }
        backbone = spec.get("backbone")

        def more() -> dict[str, str]:
            return {"backbone": fingerprint_spec(str(backbone))}

        node_id = f"features/{variant.name}/ep{epoch}/{name}-{split or 'all'}-{use}"
        return self._with_data(node_id, "features", full, data, inputs, variant.name, more if backbone else None)

    def _evaluate(self, variant: Variant, epoch: int, inputs: dict[str, str], spec: dict[str, Any]) -> None:
        evaluate, context = self.study.evaluate, self._context(variant, epoch)
        model = (inputs, spec)
        where = f"{variant.name}/ep{epoch}"
        for name in evaluate.datasets:
            probe = evaluate.probe
            square = {"facet": "out", "transform": {"mode": "square", "size": probe.size}}
            stores = {
                role: self._features(variant, epoch, model, "segmentation", name, split, square)
                for role, split in (("train", probe.train_split), ("val", probe.val_split))
            }
            data = self._data(name, "segmentation", probe.val_split)
            settings = {
                "probe": dump(probe),
                "seed": self.study.seed,
                "multiscale": list(evaluate.multiscale),
                "context": context,
            }
            self._with_data(f"probe/{where}/{name}", "probe", settings, data, stores, variant.name)
        for name in evaluate.discover:
            native = {"facet": evaluate.discover_facet, "transform": {"mode": "native"}}
            split = evaluate.discover_split
            store = self._features(variant, epoch, model, "detection", name, split, native)
            data = self._data(name, "detection", split)
            settings = {"multiscale": list(evaluate.multiscale), "context": context}
            self._with_data(f"tokencut/{where}/{name}", "tokencut", settings, data, {"store": store}, variant.name)
        for name in evaluate.knn:
            crop = {"facet": "out", "transform": {"mode": "center_crop", "size": evaluate.knn_size}}
            stores = {role: self._features(variant, epoch, model, "knn", name, role, crop) for role in ("train", "val")}
            data = self._data(name, "labels", "val")
            settings = {"k": list(evaluate.knn_k), "context": context}
            self._with_data(f"knn/{where}/{name}", "knn", settings, data, stores, variant.name)

    # --- of the whole study -----------------------------------------------------------------------------

    def _analyze(self, models: list[Any]) -> str:
        fresh = {variant.name: dump(variant.model) for variant in self.variants if variant.model is not None}
        inputs = {f"{variant.name} ep{epoch}": source["weights"] for variant, epoch, source, _ in models if source}
        settings = {"seed": self.study.seed, "models": fresh, "signal": dump(self.study.analyze)}
        return self.add("analyze", "analyze", settings, inputs=inputs)

    def _gallery(self, models: list[Any]) -> str | None:
        section, evaluate = self.study.gallery, self.study.evaluate
        name = section.dataset or (evaluate.datasets[0] if evaluate.datasets else None)
        if name is None:
            return None
        labelled = self.study.data[name].kind in {"voc", "scenes"}
        usage = "segmentation" if labelled else "images"
        data = self._data(name, usage, evaluate.probe.val_split)
        inputs: dict[str, str] = {}
        shown: list[dict[str, Any]] = []
        specs: list[str] = []
        for variant, epoch, sources, spec in models:
            label = variant.name if len(self._epochs_of(models, variant)) == 1 else f"{variant.name} ep{epoch}"
            shown.append({"label": label, "variant": variant.name, "epoch": epoch, **spec})
            specs += [str(spec["backbone"])] if spec else []
            for role, source in sources.items():
                inputs[f"{role}:{label}"] = source
            probe = f"probe/{variant.name}/ep{epoch}/{name}"
            if probe in self.nodes:
                inputs[f"probe:{label}"] = probe
            for found in evaluate.discover:
                inputs[f"tokencut {found}:{label}"] = f"tokencut/{variant.name}/ep{epoch}/{found}"
        settings = {
            "gallery": {**dump(section), "size": section.size or evaluate.probe.size, "dataset": name},
            "title": f"{self.study.name}, block by block",
            "models": shown,
            "norm": evaluate.norm,
            "facet": evaluate.discover_facet,
            "seed": self.study.seed,
            "blocks": _blocks(evaluate.blocks),
        }

        def more() -> dict[str, str]:
            return {f"backbone.{spec}": fingerprint_spec(spec) for spec in specs}

        return self._with_data("gallery", "gallery", settings, data, inputs, "", more if specs else None)

    @staticmethod
    def _epochs_of(models: list[Any], variant: Variant) -> set[int]:
        return {epoch for other, epoch, _, _ in models if other.name == variant.name}

    def _report(self, gallery: str | None, analysis: str) -> None:
        inputs = {"analyze": analysis}
        if gallery:
            inputs["gallery"] = gallery
        for node in self.nodes.values():
            if node.stage in {"probe", "tokencut", "knn", "pretrain"}:
                inputs[node.id] = node.id
        card = self.study.model_dump(mode="json", exclude={"output", "gallery", "report", "data"})
        for key in _FREE:
            (card["pretrain"] or {}).pop(key, None)
        settings = {
            "report": dump(self.study.report),
            "study": self.study.name,
            "card": card,
            "gallery": dump(self.study.gallery),
            "order": [variant.name for variant in self.variants],
        }
        self.add(
            "report",
            "report",
            settings,
            inputs=inputs,
            runtime={"study": self.study.model_dump(mode="json", exclude={"output"})},
        )


def _blocks(blocks: str | tuple[int, ...]) -> str | list[int]:
    return blocks if isinstance(blocks, str) else list(blocks)
