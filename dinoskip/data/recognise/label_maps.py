"""Recognition of the label maps among the images below a folder, by pairs of names, by words in names and by content.

Two marks are needed. A group of files is taken for label maps if their content says so (:mod:`content`), and either
their names are those of photographs in another folder or with another ending, or the folder's name has a word for
labels. Where content cannot tell (depth in 8 bits, masks stored as JPEG), pairs of names and words have to do so
together. One mark alone is said, and decides nothing.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dinoskip.data.recognise.content import ImageContent
from dinoskip.data.recognise.tree import stem_of
from dinoskip.data.recognise.words import leading_role, leads_to_labels, names_images, names_labels, without_role

Look = Callable[[str], ImageContent]
"""Gives the content of an image by its name."""

SAMPLE = 20  # files of a group: the rates of the thresholds of content are for folders of 5 to 20
SAMPLE_OF_MANY = 5  # the smallest of those folders
MANY = 40  # groups: of more, fewer files each are looked at
LONE_SAMPLE = 100  # files of the whole set, where no name says anything
MOSTLY = 0.8  # of a group's sample
PAIRED = 0.3  # of a group's files: pairs by chance are fewer
WELL_PAIRED = 0.9  # more than PAIRED, because names and pairs decide here against the content
STRAY = 0.05  # share of maps among photographs that is said and not acted on
_COMMON = 64  # folders: a stem in more of them is a number, as 0001.png in every class
_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif")

_APPENDED = re.compile(r"(?<=.)[_\-. ][A-Za-z]{1,12}$")

Role = tuple[int, str]
"""Position of a group's name in a path (-1: the end of the file's stem with the extension), and the name."""


@dataclass(frozen=True)
class MapGroup:
    """Images that are label maps and how they are told: files of a role, such as those in a folder ``masks``."""

    role: Role
    names: frozenset[str]
    images: frozenset[str]  # roles' names of the photographs that they are of; none where there are none
    partners: tuple[str, ...]  # names of some of these photographs
    why: str

    @property
    def name(self) -> str:
        """The folder's name, or the files' ending."""
        return self.role[1]


@dataclass(frozen=True)
class MapsFound:
    """Label maps among images, and what one mark alone says.

    ``groups`` are taken for label maps. ``alone`` are folders whose content looks like label maps and whose names say
    nothing, beside others that do not. ``stray`` is an image that looks like a label map in a folder of photographs.
    ``all_maps``: whether every image that was looked at is one.
    """

    groups: tuple[MapGroup, ...] = ()
    alone: tuple[str, ...] = ()
    stray: tuple[str, ...] = ()
    looked_at: int = 0
    all_maps: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Names of all label maps."""
        return frozenset().union(*(group.names for group in self.groups))


@dataclass
class _Group:
    """Files of a role, those of them that have partners in another, and these partners."""

    role: Role
    names: list[str] = field(default_factory=list)
    partners: dict[str, list[str]] = field(default_factory=dict)
    others: Counter[str] = field(default_factory=Counter)

    @property
    def paired(self) -> float:
        return len(self.partners) / max(1, len(self.names))


def find_label_maps(names: Sequence[str], look: Look, *, seen: Mapping[str, ImageContent] | None = None) -> MapsFound:
    """Find the label maps among images, which are named relative to their folder, sorted.

    ``look`` decodes one; JPEGs are not decoded but where words and pairs speak against them. At most
    :data:`SAMPLE` of a group are.
    """
    contents: dict[str, ImageContent] = dict(seen or {})

    def content(name: str) -> ImageContent:
        if name not in contents:
            contents[name] = look(name)
        return contents[name]

    if not any(not is_jpeg(name) or _has_word(name) for name in names):
        return MapsFound()
    groups = [group for group in _groups(names) if _suspect(group)]
    size = SAMPLE if len(groups) <= MANY else SAMPLE_OF_MANY
    found = [made for group in groups if (made := _judged(group, content, size)) is not None]
    taken = frozenset().union(*(group.names for group in found))
    if found and len(taken) == len(names):  # maps of maps: nothing says which are the pictures
        found, taken = [], frozenset()
    return _with_the_rest(found, [name for name in names if name not in taken], content)


def is_jpeg(name: str) -> bool:
    """Whether a file is a JPEG by its name."""
    return name.lower().endswith(_JPEG)


def _has_word(name: str) -> bool:
    *folders, last = name.split("/")
    return any(map(names_labels, folders)) or bool(without_role(stem_of(last))[1] or leading_role(stem_of(last)))


def _groups(names: Sequence[str]) -> list[_Group]:
    """Group images by every folder of their path and by the end of their names, with their partners in other groups."""
    groups: dict[Role, _Group] = {}
    buckets: dict[tuple[int, tuple[str, ...], str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    stems = {stem_of(name) for name in names}
    for name in names:
        *folders, last = name.split("/")
        stem, ending = stem_of(last), last[len(stem_of(last)) :]
        base, suffix = without_role(stem)
        if not suffix and (found := _APPENDED.search(stem)) and stem[: found.start()] in stems:
            base, suffix = stem[: found.start()], found[0]  # as CamVid's 0001_L beside 0001
        leading = "" if suffix else leading_role(stem)
        base, suffix = base[len(leading) :], f"{leading}*{suffix}" if leading else suffix
        roles = [(at, folder, (*folders[:at], *folders[at + 1 :])) for at, folder in enumerate(folders)]
        for at, value, around in [*roles, (-1, suffix + ending.lower(), tuple(folders))]:
            groups.setdefault((at, value), _Group((at, value))).names.append(name)
            buckets[at, around, base][value].append(name)
    for (at, _, _), by_value in buckets.items():
        if 1 < len(by_value) <= _COMMON:
            for value, members in by_value.items():
                group = groups[at, value]
                others = [name for other, ones in by_value.items() if other != value for name in ones]
                group.partners.update(dict.fromkeys(members, others))
                group.others.update(other for other in by_value if other != value)
    return list(groups.values())


def _suspect(group: _Group) -> bool:
    """Whether a group may be one of label maps by its names: it has partners, or is called so."""
    at, value = group.role
    called = names_labels(value) if at >= 0 else bool(_suffix_word(value))
    if at >= 0 and names_images(value):
        return False
    return called or group.paired >= PAIRED


def _suffix_word(value: str) -> str:
    """The words of an ending such as ``_mask.png``, or a beginning such as ``depth_*.png``, if they are of labels."""
    suffix = value.rpartition(".")[0]
    if suffix.endswith("*"):
        return suffix if leads_to_labels(suffix) else ""
    return suffix if suffix and names_labels(suffix) else ""


def spread(names: Sequence[str], count: int) -> list[str]:
    """At most ``count`` of the names, evenly spread, the first among them."""
    if len(names) <= count:
        return list(names)
    return [names[at * len(names) // count] for at in range(count)]


def _judged(group: _Group, content: Look, size: int) -> MapGroup | None:
    at, value = group.role
    called = names_labels(value) if at >= 0 else bool(_suffix_word(value))
    paired = group.paired >= PAIRED
    members = sorted(group.partners) if paired else group.names
    sample = [name for name in spread(members, size) if called or not is_jpeg(name)]
    looked = [(name, content(name)) for name in sample]
    looked = [(name, one) for name, one in looked if one.kind != "unreadable"]
    if not looked:
        return None
    maps = [name for name, one in looked if one.is_map]
    beside = [name for name in maps if _is_beside_a_picture(group.partners.get(name, ()), content)]
    images = frozenset(other for other, _ in group.others.most_common(3)) if paired else frozenset()
    made = _made(group, images)
    if called and len(maps) >= MOSTLY * len(looked):
        return made("names and content")
    if paired and len(beside) >= MOSTLY * len(looked) and not called:
        return made("pairs and content")
    if called and paired:
        plain = [name for name, one in looked if one.grey or one.kind in {"lossy map", "label map", "depth map"}]
        of_images = any(names_images(other) for other in images)
        if len(plain) >= MOSTLY * len(looked) or (of_images and group.paired >= WELL_PAIRED):
            return made("names and pairs")
    return None


def _made(group: _Group, images: frozenset[str]) -> Callable[[str], MapGroup]:
    names = frozenset(group.names)
    partners = tuple(dict.fromkeys(name for ones in group.partners.values() for name in ones[:4])) if images else ()
    return lambda why: MapGroup(group.role, names, images, partners, why)


def _is_beside_a_picture(partners: Iterable[str], content: Look) -> bool:
    return any(is_jpeg(name) or not content(name).is_map for name in list(partners)[:4])


def _with_the_rest(found: list[MapGroup], rest: Sequence[str], content: Look) -> MapsFound:
    """Find folders of label maps, and single ones, among the images that no name speaks against."""
    groups = tuple(sorted(found, key=lambda group: (group.role[0] < 0, -len(group.names), group.role)))
    lossless = [name for name in rest if not is_jpeg(name)]
    by_folder: dict[str, list[str]] = defaultdict(list)
    for name in lossless:
        by_folder[name.rpartition("/")[0]].append(name)
    each = max(1, LONE_SAMPLE // max(1, len(by_folder)))
    folders = spread(sorted(by_folder), LONE_SAMPLE)
    looked = {folder: [(n, content(n)) for n in spread(by_folder[folder], min(each, SAMPLE))] for folder in folders}
    maps = {folder: [name for name, one in ones if one.is_map] for folder, ones in looked.items()}
    total, of_maps = sum(map(len, looked.values())), sum(map(len, maps.values()))
    all_maps = bool(total) and of_maps == total and len(lossless) == len(rest)
    full = [
        folder for folder in folders
        if len(maps[folder]) >= MOSTLY * len(looked[folder]) and len(looked[folder]) >= min(5, len(by_folder[folder]))
        and not any(is_jpeg(name) for name in rest if name.rpartition("/")[0] == folder)
    ]  # fmt: skip
    alone = tuple(full) if not all_maps and len(full) < len({name.rpartition("/")[0] for name in rest}) else ()
    stray = tuple(name for folder in folders if folder not in alone for name in maps[folder]) if not all_maps else ()
    return MapsFound(groups, alone, stray, total, all_maps)
