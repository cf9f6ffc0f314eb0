"""From a study to its nodes: which stages exist for which variant, what each reads and needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dinoskip import __version__
from dinoskip.config import dump
from dinoskip.data.sets import DatasetConfig, has_boxes, has_masks
from dinoskip.init.build import WeightSelectionInit
from dinoskip.pipeline.external import annotations_hash, backbone_hash, images_hash, targets_hash
from dinoskip.pipeline.graph import Node
from dinoskip.pipeline.notices import PREPARED
from dinoskip.pipeline.stages import STAGES
from dinoskip.pipeline.study import ProbeSection, RetrieveSection, Study, Variant
from dinoskip.pipeline.sweep import short_recipe
from dinoskip.training.recipe import FREE_KEYS

# Settings of a pretraining that are not part of its key. ``keep_epochs`` is: it changes no number, but it says which
# checkpoints the output holds, and the weights stage reads those.
_FREE = tuple(key for key in FREE_KEYS if key != "keep_epochs")


def build_nodes(study: Study, variants: tuple[Variant, ...]) -> list[Node]:
    """Every node of a study, in order of execution."""
    return _Builder(study, variants).build()


# Parts of a study that the report's card of settings leaves out: they change no number, or stand elsewhere on the page.
_NOT_ON_CARD = {"name", "output", "data", "model", "optimizer", "variants", "gallery", "report"}

Hash = tuple[Any, ...]  # a function of external.py and its arguments after the configuration


@dataclass(frozen=True)
class _Data:
    """What a node needs of a data set; ``outside`` are the calls that hash files outside the study, by name."""

    settings: dict[str, Any]
    inputs: dict[str, str]
    runtime: dict[str, Any]
    outside: dict[str, tuple[Any, ...]] = field(default_factory=dict)


class _Builder:
    def __init__(self, study: Study, variants: tuple[Variant, ...]) -> None:
        self.study, self.variants = study, variants
        self.nodes: dict[str, Node] = {}
        self.hashed: dict[tuple[Any, ...], str] = {}

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
            run = self._train(variant)
            weights = {epoch: self._weights(variant, epoch, run) for epoch in self._epochs()}
            models += [(variant, epoch, {"weights": node}, {}) for epoch, node in weights.items()]
        for variant, epoch, inputs, settings in models:
            self._evaluate(variant, epoch, inputs, settings)
        self._analyze(models)
        self._gallery(models)
        self._report()
        position = list(STAGES)
        return sorted(self.nodes.values(), key=lambda node: position.index(node.stage))

    # --- data -------------------------------------------------------------------------------------------

    def _data(self, name: str, split: str, *hashes: Hash) -> _Data:
        """How a node takes in a split: the output of a data stage, or outside files by the given hashes of content."""
        config: DatasetConfig = self.study.data[name]
        settings = {"dataset": {"kind": config.kind, "split": split}}
        if config.kind == "scenes":
            node = self.add(f"data/{name}", "data", {"scenes": dump(config)})
            return _Data(settings, {"data": node}, {"config": dump(config)})
        settings["dataset"].update({key: value for key, value in dump(config).items() if key not in {"root", "kind"}})
        outside = {
            f"{name}: {function.__name__.replace('_hash', '')} of {rest[-1]}": (function, config, *rest)
            for function, *rest in hashes
        }
        return _Data(settings, {}, {"config": dump(config)}, outside)

    def _epochs(self) -> tuple[int, ...]:
        assert self.study.recipe is not None
        return self.study.evaluate.epochs or (self.study.recipe.epochs,)

    # --- per variant ------------------------------------------------------------------------------------

    def _train(self, variant: Variant) -> str:
        """The node that trains a variant: ``pretrain`` (DINO) or ``supervise``."""
        assert self.study.recipe is not None
        assert variant.model is not None
        assert variant.optimizer is not None
        recipe = dump(self.study.recipe)
        name, free = recipe.pop("dataset"), {key: recipe.pop(key) for key in _FREE}
        settings = {"seed": self.study.seed, "model": dump(variant.model), "optimizer": dump(variant.optimizer)}
        splits: tuple[str, ...] = ("train",)
        if self.study.pretrain:
            stage = "pretrain"
            settings["pretrain"] = recipe
        else:
            stage, splits = "supervise", ("train", "val")
            settings |= {"supervised": recipe, "context": {**self._context(variant, recipe["epochs"]), "dataset": name}}
        data = self._data(name, "train", *((images_hash, "pretraining", split) for split in splits))
        data.outside.update(_selected_from(variant))
        data.runtime["free"] = free
        data.runtime["online"], beside = self._online()
        inputs = self._sweep(variant, settings, data, beside) if self.study.sweep else {}
        return self._with_data(f"{stage}/{variant.name}", stage, settings, data, inputs, variant.name, beside)

    def _weights(self, variant: Variant, epoch: int, run: str) -> str:
        """The backbone after an epoch of ``run``; epoch 0, before training, needs none."""
        assert variant.model is not None
        start = {} if epoch else {"seed": self.study.seed, "model": dump(variant.model)}
        outside = {} if epoch else _selected_from(variant)
        return self.add(
            f"weights/{variant.name}/ep{epoch}",
            "weights",
            {"epoch": epoch, **start},
            inputs={"run": run} if epoch else {},
            external=partial(self._hash_outside, outside) if outside else None,
            variant=variant.name,
        )

    def _sweep(
        self, variant: Variant, settings: Mapping[str, Any], data: _Data, beside: Mapping[str, str]
    ) -> dict[str, str]:
        """The node that chooses the learning rate of a pretraining; what it is chosen by is part of its key."""
        assert self.study.sweep is not None
        assert self.study.pretrain is not None
        recipe = short_recipe(dump(self.study.pretrain), self.study.sweep)
        recipe.pop("dataset")
        free = {key: recipe.pop(key) for key in _FREE}
        optimizer = {key: value for key, value in settings["optimizer"].items() if key != "lr"}
        online = {name: dump(part) for name, part in self.study.online.parts.items()}
        outside = dict(data.outside)
        for part in self.study.online.parts.values():
            for split in part.splits:
                hashes = ((images_hash, part.use, split), (targets_hash, part.use, split))
                outside |= self._data(part.dataset, split, *hashes).outside
        node = self._with_data(
            f"sweep/{variant.name}",
            "sweep",
            {**settings, "optimizer": optimizer, "pretrain": recipe, "lr": list(self.study.sweep.lr), "online": online},
            _Data(data.settings, data.inputs, {**data.runtime, "free": free}, outside),
            {f"data of {role}": node for role, node in beside.items()},
            variant.name,
            beside,
        )
        return {"sweep": node}

    def _online(self) -> tuple[dict[str, Any], dict[str, str]]:
        """What is measured while training, by name, and the nodes that make its data: no part of any key."""
        parts: dict[str, Any] = {}
        beside: dict[str, str] = {}
        for name, part in self.study.online.parts.items():
            data = self._data(part.dataset, "train")
            parts[name] = {"section": dump(part), "config": data.runtime["config"]}
            beside |= {f"online {name}": node for node in data.inputs.values()}
        return parts, beside

    def _with_data(
        self,
        node_id: str,
        stage: str,
        settings: Mapping[str, Any],
        data: _Data,
        inputs: Mapping[str, str],
        variant: str,
        beside: Mapping[str, str] | None = None,
    ) -> str:
        return self.add(
            node_id,
            stage,
            {**settings, **data.settings},
            inputs={**inputs, **data.inputs},
            runtime=data.runtime,
            external=partial(self._hash_outside, data.outside) if data.outside else None,
            variant=variant,
            beside=beside or {},
        )

    def _hash_outside(self, outside: Mapping[str, tuple[Any, ...]]) -> dict[str, str]:
        """Hashes by name; each set of files is read once a study, however many nodes ask."""
        for function, *arguments in outside.values():
            key = (function, *map(str, arguments))
            if key not in self.hashed:
                self.hashed[key] = function(*arguments)
        return {name: self.hashed[(f, *map(str, arguments))] for name, (f, *arguments) in outside.items()}

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
        data = self._data(name, split, (images_hash, use, split))
        evaluate = self.study.evaluate
        usual = evaluate.norm[0] if settings["facet"] == "out" else "none"  # projections have no norm after them
        norm = settings.get("norm", usual)
        full = {**settings, **spec, "norm": norm, "blocks": _blocks(evaluate.blocks), "use": use}
        if spec:
            data.outside["backbone"] = (backbone_hash, spec["backbone"])
        size = settings["transform"].get("size")
        other = f"{size}" if use == "segmentation" and size != evaluate.probe.size else ""  # retrieval's own
        other += "" if norm == usual else f"-{norm}"
        if use == "detection" and settings["facet"] != evaluate.discover_facet[0]:
            other += f"-{settings['facet']}"
        node_id = f"features/{variant.name}/ep{epoch}/{name}-{split}-{use}{other}"
        return self._with_data(node_id, "features", full, data, inputs, variant.name)

    def _evaluate(self, variant: Variant, epoch: int, inputs: dict[str, str], spec: dict[str, Any]) -> None:
        evaluate, context = self.study.evaluate, self._context(variant, epoch)
        model = (inputs, spec)
        multiscale = list(evaluate.multiscale) if evaluate.multiscale else None
        where = f"{variant.name}/ep{epoch}"
        several = len(evaluate.norm) > 1  # are made of one store when it is read, by the model
        for name in evaluate.datasets:
            more = {"multiscale": multiscale, "blocks": _blocks(evaluate.blocks), "norms": list(evaluate.norm)}
            norm, whole = "none" if several else evaluate.norm[0], several or evaluate.probe.live
            self._labelled("probe", variant, epoch, name, more, model, norm, with_model=whole)
        for name in evaluate.retrieval:
            self._labelled("retrieve", variant, epoch, name, {}, model, evaluate.norm[0])
        for name in evaluate.discover:
            split, section = evaluate.discover_split, evaluate.tokencut
            files = [(targets_hash, "detection", split)]
            files += [(images_hash, "detection", split)] if section.overlays else []
            settings = {"tokencut": dump(section), "multiscale": multiscale, "context": {**context, "dataset": name}}
            for facet in evaluate.discover_facet:
                native = {"facet": facet, "transform": {"mode": "native"}}
                store = self._features(variant, epoch, model, "detection", name, split, native)
                node_id = f"tokencut/{where}/{name}" + ("" if facet == evaluate.discover_facet[0] else f"-{facet}")
                data = self._data(name, split, *files)
                self._with_data(node_id, "tokencut", settings, data, {"store": store}, variant.name)
        for name in evaluate.knn:
            crop = {"facet": "out", "transform": {"mode": "center_crop", "size": evaluate.knn_size}}
            splits = ("train", "val")
            stores = {split: self._features(variant, epoch, model, "classes", name, split, crop) for split in splits}
            data = self._data(name, "val", *((targets_hash, "classes", split) for split in splits))
            settings = {"k": list(evaluate.knn_k), "context": {**context, "dataset": name}}
            self._with_data(f"knn/{where}/{name}", "knn", settings, data, stores, variant.name)

    def _labelled(
        self, stage: str, variant: Variant, epoch: int, name: str, settings: Mapping[str, Any],
        model: tuple[dict[str, str], dict[str, Any]], norm: str, *, with_model: bool = False,
    ) -> None:  # fmt: skip
        """``probe`` or ``retrieve``: on stores of square images, or live on the images themselves."""
        section: ProbeSection | RetrieveSection = getattr(self.study.evaluate, stage)
        use, splits = "segmentation", {"train": section.train_split, "val": section.val_split}
        hashes: list[Hash] = [(targets_hash, use, split) for split in splits.values()]
        inputs: dict[str, str] = {}
        if isinstance(section, ProbeSection) and section.live:
            hashes += [(images_hash, use, split) for split in splits.values()]
        else:
            square = {"facet": "out", "transform": {"mode": "square", "size": section.size}, "norm": norm}
            inputs = {
                role: self._features(variant, epoch, model, use, name, split, square) for role, split in splits.items()
            }
        data = self._data(name, section.val_split, *hashes)
        context = {**self._context(variant, epoch), "dataset": name}
        own = {stage: dump(section), "seed": self.study.seed, "context": context, **settings}
        if with_model:
            inputs |= model[0]
            own |= model[1]
            if model[1]:
                data.outside["backbone"] = (backbone_hash, model[1]["backbone"])
        self._with_data(f"{stage}/{variant.name}/ep{epoch}/{name}", stage, own, data, inputs, variant.name)

    # --- of the whole study -----------------------------------------------------------------------------

    def _analyze(self, models: list[Any]) -> None:
        fresh = {variant.name: dump(variant.model) for variant in self.variants if variant.model is not None}
        inputs = {f"{variant.name} ep{epoch}": source["weights"] for variant, epoch, source, _ in models if source}
        settings = {"seed": self.study.seed, "models": fresh, "signal": dump(self.study.analyze)}
        self.add("analyze", "analyze", settings, inputs=inputs)

    def _gallery(self, models: list[Any]) -> None:
        section, evaluate = self.study.gallery, self.study.evaluate
        name = section.dataset or (evaluate.datasets[0] if evaluate.datasets else None)
        if name is None:
            return
        split = evaluate.probe.val_split
        config = self.study.data[name]
        if has_masks(config):
            shown_files: tuple[Hash, ...] = (
                (images_hash, "segmentation", split),
                (targets_hash, "segmentation", split),
                (annotations_hash, split),
            )
        elif has_boxes(config):
            shown_files = ((images_hash, "detection", split), (targets_hash, "detection", split))
        else:
            shown_files = ((images_hash, "pretraining", split),)
        data = self._data(name, split, *shown_files)
        inputs: dict[str, str] = {}
        shown: list[dict[str, Any]] = []
        epochs = section.epochs or (max(self._epochs()),) if self.study.recipe else ()
        for variant, epoch, sources, spec in models:
            if not spec and epoch not in epochs:
                continue
            label = f"{variant.name} ep{epoch}" if len(epochs) > 1 and not spec else variant.name
            shown.append({"label": label, "variant": variant.name, "epoch": epoch, **spec})
            if spec:
                data.outside[f"backbone {spec['backbone']}"] = (backbone_hash, spec["backbone"])
            for role, source in sources.items():
                inputs[f"{role}:{label}"] = source
            probe = f"probe/{variant.name}/ep{epoch}/{name}"
            if probe in self.nodes:
                inputs[f"probe:{label}"] = probe
            for found in evaluate.discover:
                inputs[f"tokencut {found}:{label}"] = f"tokencut/{variant.name}/ep{epoch}/{found}"
        drawn = {key: value for key, value in dump(section).items() if key != "epochs"}
        settings = {
            "gallery": {**drawn, "size": section.size or evaluate.probe.size, "dataset": name},
            "title": f"{self.study.name}, block by block",
            "models": shown,
            "norm": evaluate.norm[0],
            "facet": evaluate.discover_facet[0],
            "seed": self.study.seed,
            "blocks": _blocks(evaluate.blocks),
        }

        self._with_data("gallery", "gallery", settings, data, inputs, "")

    def _report(self) -> None:
        read = [  # all that has rows, logs or pictures; for costs every stage
            name for name, n in self.nodes.items() if self.study.report.costs or n.stage not in PREPARED
        ]
        card = self.study.model_dump(mode="json", exclude=_NOT_ON_CARD)
        for section in ("pretrain", "supervised"):
            for key in _FREE:
                (card[section] or {}).pop(key, None)
        if not self.study.supervised:
            card.pop("supervised")
        if not self.study.online.parts:
            card.pop("online")
        if not self.study.sweep:
            card.pop("sweep")
        settings = {
            "report": dump(self.study.report),
            "study": self.study.name,
            "card": card,
            "variants": {variant.name: _described(variant) for variant in self.variants},
            "datasets": {name: _without_places(config) for name, config in self.study.data.items()},
            "epochs": self.study.recipe.epochs if self.study.recipe else 0,
            "trained_on": self.study.recipe.dataset if self.study.recipe else "",
        }
        self.add(
            "report",
            "report",
            settings,
            inputs={name: name for name in read},
            runtime={"study": self.study.model_dump(mode="json", exclude={"output"})},
        )


def _described(variant: Variant) -> dict[str, Any]:
    """Every setting of a variant."""
    if variant.model is None or variant.optimizer is None:
        return {"backbone": variant.backbone}
    return {"model": dump(variant.model), "optimizer": dump(variant.optimizer)}


def _without_places(config: DatasetConfig) -> dict[str, Any]:
    """A data set's settings but for where it lies, which changes no number."""
    return {key: value for key, value in dump(config).items() if key != "root"}


def _selected_from(variant: Variant) -> dict[str, Hash]:
    """The call that hashes the network from which a variant's first weights are selected, if they are."""
    init = variant.model.init if variant.model else None
    return {"weights selected from": (backbone_hash, init.teacher)} if isinstance(init, WeightSelectionInit) else {}


def _blocks(blocks: str | tuple[int, ...]) -> str | list[int]:
    return blocks if isinstance(blocks, str) else list(blocks)
