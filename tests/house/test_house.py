"""House rules a machine can hold: import law, sizes, one decoder, one place that opens weights, files in step."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.helpers.absent_parts import names_an_absent_part

ROOT = Path(__file__).parents[2]
CORE = sorted(path for package in ("dinoskip", "eval", "visualize") for path in (ROOT / package).rglob("*.py"))
PLUGINS = sorted(path for package in ROOT.glob("plugins/*/dinoskip_*") for path in package.rglob("*.py"))
SOURCES = [*CORE, *PLUGINS]

BASE = {"__version__", "errors", "plugins", "io", "runtime"}
ROOMS = BASE | {"settings", "results", "decisions"}
# What each part may import of dinoskip. Later parts may import earlier ones.
LAW = {
    "errors": set(),
    "io": {"errors", "runtime"},
    "runtime": {"errors", "io", "__version__"},
    "plugins": {"errors", "io", "runtime"},
    "settings": BASE,
    "results": BASE | {"settings"},
    "decisions": BASE | {"settings", "results"},
    "models": ROOMS,
    "init": ROOMS | {"models"},
    "optim": ROOMS | {"models"},
    "data": ROOMS | {"models", "init", "optim"},
    "diagnostics": ROOMS | {"models", "init", "data"},
    "training": ROOMS | {"models", "init", "optim", "data", "features", "diagnostics"},
    "features": ROOMS | {"models", "init", "data"},
    "pipeline": ROOMS | {"models", "init", "optim", "data", "training", "features", "diagnostics"},
    "cli": ROOMS | {"models", "init", "optim", "data", "training", "features", "diagnostics", "pipeline"},
    "testing": ROOMS | {"models", "init", "optim", "data", "training", "pipeline", "cli"},
}
MOST_AT_THE_ROOT = 10
"""Modules beside the rooms: a reader should find where a thing lives from the tree alone."""


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree, the module first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


@cache
def calls_of(path: Path) -> list[tuple[str, ast.Call]]:
    """The calls of a file, each with the function that it calls as text."""
    return [(ast.unparse(node.func), node) for node in nodes_of(path) if isinstance(node, ast.Call)]


@cache
def imports_of(path: Path) -> set[str]:
    """Dotted names of all modules a file imports, lazily or not."""
    found: set[str] = set()
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def test_import_law() -> None:
    for path in CORE:
        parts = path.relative_to(ROOT).with_suffix("").parts
        tops = {name.split(".")[0] for name in imports_of(path)}
        inner = {name.split(".")[1] for name in imports_of(path) if name.startswith("dinoskip.")}
        if parts[0] in {"eval", "visualize"}:
            assert ({"eval", "visualize"} - {parts[0]}).isdisjoint(tops), path
            assert inner.isdisjoint({"pipeline", "cli"}), path
            continue
        if parts[1] not in {"pipeline", "cli", "testing"}:
            assert {"eval", "visualize"}.isdisjoint(tops), f"{path}: pipeline, cli and testing alone may import them"
        if parts[1] not in {"__init__", "__main__"}:
            allowed = LAW[parts[1]] | {parts[1]}
            assert inner <= allowed, f"{path} imports {inner - allowed}"


def test_nothing_imports_a_plugin() -> None:
    """Neither the core nor another plug-in: its parts are found by their entry points."""
    names = {package.name for package in ROOT.glob("plugins/*/dinoskip_*")}
    assert bool(names) == (ROOT / "plugins").is_dir()
    for path in SOURCES:
        own = path.relative_to(ROOT).parts[2] if path in PLUGINS else ""
        tops = {name.split(".")[0] for name in imports_of(path)}
        assert tops.isdisjoint(names - {own}), path
        if own:
            inner = {name.split(".")[1] for name in imports_of(path) if name.startswith("dinoskip.")}
            assert "testing" not in inner, path
            in_cli = {name for name in imports_of(path) if name.startswith("dinoskip.cli")} - {"dinoskip.cli"}
            assert all(name.startswith("dinoskip.cli.arguments") for name in in_cli), f"{path}: what commands share"


def test_the_core_names_no_part_of_a_plugin() -> None:
    """No table of the core has what the entry points of our own plug-ins have."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("entry-points", {})
    modules = {target.partition(":")[0].split(".")[0] for parts in groups.values() for target in parts.values()}
    assert modules == {package.name for package in ROOT.glob("plugins/*/dinoskip_*")}
    for path in CORE:
        assert not {*re.findall(r"\bdinoskip_\w+", path.read_text())} & modules, path


def test_few_modules_at_the_root() -> None:
    assert len(list((ROOT / "dinoskip").glob("*.py"))) <= MOST_AT_THE_ROOT


def test_sizes() -> None:
    for path in SOURCES:
        assert path.read_text().count("\n") <= 500, path
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= 60, f"{path}: {node.name} has {length} lines"


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[2:] if parts[0] == "plugins" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_import_circle() -> None:
    modules = {module_of(path): path for path in SOURCES}
    graph = {name: (imports_of(path) & set(modules)) - {name} for name, path in modules.items()}
    for name in graph:  # importing a package's part is no use of the package
        graph[name] = {to for to in graph[name] if not any(other.startswith(f"{to}.") for other in graph[name])}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path[path.index(name) :], name))
        if name not in done:
            for other in graph[name]:
                visit(other, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


def importing_functions(path: Path) -> list[tuple[str, list[int]]]:
    """Functions that import, and the lines of their imports."""
    functions = [node for node in nodes_of(path) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    lines = {
        function.name: [node.lineno for node in ast.walk(function) if isinstance(node, ast.Import | ast.ImportFrom)]
        for function in functions
    }
    return [(name, numbers) for name, numbers in lines.items() if numbers]


def test_imports_inside_functions_have_a_reason() -> None:
    """A comment at the imports; those of the command line have theirs in the docstring of dinoskip.cli.arguments."""
    elsewhere = in_commands = in_stages = in_settings = 0
    for path in SOURCES:
        lines = path.read_text().splitlines()
        for name, numbers in importing_functions(path):
            if path.parent.name == "cli" or path.stem == "command":
                in_commands += len(numbers)
                continue
            if path.parent.name == "stages" or path.stem == "stage":  # without torch until they run
                in_stages += len(numbers)
            elif path.stem.endswith("config") or path.name == "recipe.py":  # without torch until something is built
                in_settings += len(numbers)
            else:
                elsewhere += len(numbers)
            near = [lines[number - offset] for number in numbers for offset in (1, 2)]
            assert any("# " in line for line in near), f"{path.relative_to(ROOT)}: {name}: why is this not at the top?"
    assert in_commands <= 55
    assert in_stages <= 25
    assert in_settings <= 13
    assert elsewhere <= 54


def test_no_two_public_classes_of_one_name() -> None:
    places: dict[str, str] = {}
    for path in SOURCES:
        for node in ast.iter_child_nodes(nodes_of(path)[0]):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                assert node.name not in places, f"{node.name}: {places[node.name]} and {path}"
                places[node.name] = str(path)


def test_nothing_is_left_undone() -> None:
    for path in SOURCES:
        assert not re.search(r"\b(TODO|FIXME|XXX|NotImplementedError)\b", path.read_text()), path


def test_no_docstring_opens_as_a_question() -> None:
    question = re.compile(r"(What|How|Which|Where|Why|Who|When)\b")
    documented = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    asked = [
        f"{path.relative_to(ROOT)}: {said.splitlines()[0]}"
        for path in SOURCES
        for node in nodes_of(path)
        if isinstance(node, documented) and (said := ast.get_docstring(node)) and question.match(said)
    ]
    assert not asked


def test_one_place_decodes_and_one_opens_weights() -> None:
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        called = {function for function, _ in calls_of(path)}
        if name not in ("dinoskip/io/files.py", "dinoskip/io/torch_files.py"):
            assert called.isdisjoint(
                {"torch.load", "torch.save", "pickle.load", "pickle.loads", "load_file", "save_file"}
            ), name
        if name != "dinoskip/io/images.py":
            assert called.isdisjoint({"Image.open", "cv2.imread", "cv2.imdecode", "decode_image", "decode_jpeg"}), name
        assert called.isdisjoint({"eval", "exec"}), name
        assert "shell" not in {keyword.arg for _, node in calls_of(path) for keyword in node.keywords}, name


DELETES = {
    "shutil.rmtree", "shutil.move", "os.remove", "os.unlink", "os.rmdir", "os.removedirs", "os.replace", "os.rename",
    "os.renames",
}  # fmt: skip
MAY_DELETE = ("dinoskip/io/output.py", "dinoskip/io/files.py", "dinoskip/io/locks.py")


def test_one_place_deletes_and_replaces() -> None:
    """These modules refuse foreign files: a link in the place of a working folder once emptied another's folder."""
    for path in SOURCES:
        if (name := path.relative_to(ROOT).as_posix()) in MAY_DELETE:
            continue
        for called, node in calls_of(path):
            if isinstance(node.func, ast.Attribute):
                assert called not in DELETES, f"{name}:{node.lineno}"
                assert node.func.attr not in {"unlink", "rmdir"}, f"{name}:{node.lineno}"


def test_one_printer() -> None:
    """dinoskip.runtime.console.say, which makes control characters visible; names of files forged lines."""
    for path in SOURCES:
        name = path.relative_to(ROOT).as_posix()
        called = {function for function, _ in calls_of(path)}
        if name != "dinoskip/runtime/console.py" and not name.startswith("dinoskip/testing/examples/"):
            assert called.isdisjoint({"print", "sys.stdout.write", "sys.stderr.write", "warnings.warn"}), name


READS = {"zipfile.is_zipfile", "tarfile.is_tarfile", "np.load", "np.fromfile", "np.genfromtxt", "np.loadtxt"}
"""Calls that open a path before anybody has looked whether it is a regular file; beside open, read_text, read_bytes."""
OWN_READS = {
    "dinoskip/io/files.py": "the door itself: open_regular",
    "dinoskip/io/arrays.py": "map_array, after open_regular",
    "dinoskip/pipeline/gallery/surfaces.py": "np.load of a stream of open_regular",
    "dinoskip/cli/start.py": "the studies that come with the package",
    "dinoskip/models/traced.py": "a temporary file of its own",
    "dinoskip/testing/study.py": "an example that comes with the package",
    "dinoskip/runtime/joining.py": "the source files of the package",
    "dinoskip/runtime/memory.py": "files of the system below /sys, which say that they are empty",
    "visualize/pages.py": "the templates of the package",
    "visualize/figures/drawing.py": "a figure that it has just drawn",
}


def test_one_door_for_files_that_are_read() -> None:
    """/dev/zero as weights took all memory, and a FIFO hung: zipfile had opened them before they were looked at."""
    for path in SOURCES:
        if (name := path.relative_to(ROOT).as_posix()) in OWN_READS:
            continue
        for called, node in calls_of(path):
            at = 1 if called == "open" else 0
            mode = node.args[at].value if len(node.args) > at and isinstance(node.args[at], ast.Constant) else "r"
            opens = called == "open" or (called.endswith(".open") and mode in {"rb", "rt"})
            reads = (opens and not set(str(mode)) & set("wax")) or called in READS
            attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if reads or attribute in {"read_text", "read_bytes"}:
                text = ast.unparse(node)
                assert "/proc/" in text, f"{name}:{node.lineno}: {text}: use open_regular or read_regular"


def _requirement(line: str) -> tuple[str, str]:
    match = re.match(r"^([A-Za-z0-9._-]+)\s*(.*)$", line)
    assert match, line
    return match[1].lower(), match[2].replace(" ", "")


def test_environment_yml_is_in_step_with_pyproject() -> None:
    conda_name = {
        "torch": "pytorch-gpu",
        "opencv-python-headless": "py-opencv",
        "matplotlib": "matplotlib-base",
        "faiss-cpu": "faiss-gpu",
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    expected = {conda_name.get(name, name): spec for name, spec in map(_requirement, project["dependencies"])}
    expected["python"] = project["requires-python"]
    lines = (ROOT / "environment.yml").read_text().split("dependencies:")[1].splitlines()
    found = dict(_requirement(line.strip().removeprefix("- ")) for line in lines if line.strip())
    assert found.pop("pip") == ""
    assert found.pop("cuda-version").startswith(">=12")
    assert found == expected


def test_constraints_lie_inside_the_declared_ranges() -> None:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = [Requirement(line) for line in project["dependencies"] + project["optional-dependencies"]["dev"]]
    pins = _pins()
    for requirement in declared:
        assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)]), requirement


def _pins() -> dict[str, str]:
    """Version by package of constraints.txt, each of which must have hashes."""
    blocks = re.split(r"\n(?=[a-z])", (ROOT / "constraints.txt").read_text())[1:]
    pins = {}
    for block in blocks:
        (name, version), hashes = block.split()[0].split("=="), block.count("--hash=sha256:")
        assert hashes, name
        pins[name] = version
    return pins


def test_constraints_hold_all_that_the_pinned_packages_need() -> None:
    """40 of 190 were pinned, none by its hash."""
    from importlib.metadata import PackageNotFoundError, distribution

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    pins = _pins()
    missing = set()
    for name, version in pins.items():
        try:
            package = distribution(name)
        except PackageNotFoundError:  # of CUDA, or of another processor
            continue
        if package.version.split("+")[0] != version.split("+")[0]:  # another version may need other packages
            continue
        needed = [Requirement(line) for line in package.requires or ()]
        always = (other for other in needed if other.marker is None or other.marker.evaluate({"extra": ""}))
        missing |= {other.name for other in always if canonicalize_name(other.name) not in pins}
    assert not missing


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "dependencies.md").read_text()
    extras = [line for group in project["optional-dependencies"].values() for line in group]
    for line in project["dependencies"] + extras:
        assert f"`{_requirement(line)[0]}`" in text, line


def test_every_config_opens_with_what_it_is_and_loads() -> None:
    from dinoskip.errors import ConfigError
    from dinoskip.pipeline.study import load_study
    from dinoskip.settings.config import read_yaml, validate
    from dinoskip.training.launch import ClusterConfig

    configs = sorted((ROOT / "configs").rglob("*.yaml"))
    assert configs
    for path in configs:
        if path.parent.name == "start":  # what init-study fills in: tests/cli/test_start.py
            continue
        head = path.read_text().split("\n\n")[0]
        assert all(line.startswith("#") for line in head.splitlines()), path
        for word in ("Command:", "Time:", "Expect:"):
            assert word in head, f"{path}: its first comment lacks {word}"
        if path.parent.name == "cluster":
            validate(ClusterConfig, read_yaml(path))
            continue
        try:
            study, variants = load_study(path)
        except ConfigError as error:
            if all(map(names_an_absent_part, error.problems)):
                continue  # it asks for what a core alone lacks
            raise
        assert variants, path
        assert study.name


def test_package_data_has_the_templates() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["package-data"]["visualize"] == ["py.typed", "templates/*"]
    assert all(
        path.parent == ROOT / "visualize" / "templates"
        for path in (ROOT / "visualize" / "templates").rglob("*")
        if path.is_file()
    )


@pytest.mark.parametrize("package", ["eval", "visualize", "visualize/figures", "visualize/gallery", "visualize/report"])
def test_a_package_names_its_modules_and_no_others(package: str) -> None:
    said = ast.get_docstring(ast.parse((ROOT / package / "__init__.py").read_text())) or ""
    modules = {path.stem for path in (ROOT / package).glob("*.py")} - {"__init__"}
    modules |= {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
    assert set(re.findall(r"``(\w+)``", said)) == modules


def test_links_of_the_documents_resolve() -> None:
    for page in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs").glob("plugins/*.md")),
    ):
        for target, anchor in re.findall(r"\]\(([^)#]*)#?([^)]*)\)", page.read_text()):
            to = page.parent / target if target else page
            assert target.startswith("https://") or to.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in _anchors(to), f"{page.name}: {target}#{anchor}"


def _anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings in lower case, spaces as hyphens, without punctuation."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_removing_temporaries_hides_no_error() -> None:
    """A clean-up that raises on a disk that has become read-only would hide the error that says so."""
    for path in SOURCES:
        for called, node in calls_of(path):
            if called.endswith("TemporaryDirectory"):
                assert "ignore_cleanup_errors" in {keyword.arg for keyword in node.keywords}, f"{path}:{node.lineno}"


TABLES_OF_TASKS = {"dinoskip/settings/tasks.py"}
"""The table of the core's records."""


def test_tasks_are_listed_in_one_table_alone() -> None:
    from dinoskip.settings.tasks import TASKS

    every = set(TASKS)  # once: a table looks for plug-ins each time
    for path in SOURCES:
        if path.relative_to(ROOT).as_posix() in TABLES_OF_TASKS:
            continue
        for node in nodes_of(path):
            parts = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
            names = {part.value for part in parts if isinstance(part, ast.Constant)} & every
            assert len(names) < 3, (
                f"{path.relative_to(ROOT)}:{node.lineno}: a list of tasks: {', '.join(sorted(names))}"
            )


def test_every_finished_study_names_its_rows_and_commit() -> None:
    """The studies of slots wait for a GPU, so they have neither."""
    scripts = [path for path in (ROOT / "studies").rglob("*.py") if not path.name.startswith(("slots", "__init__"))]
    assert scripts
    for path in scripts:
        header = re.fullmatch(
            r"# Frozen: rows (\S+), commit [0-9a-f]{8}, \d{4}-\d\d-\d\d\.", path.read_text().splitlines()[0]
        )
        assert header, path
        assert (ROOT / header[1]).is_file(), path


def test_products_and_benchmarks_import_no_study() -> None:
    for path in [*SOURCES, *(ROOT / "benchmarks").rglob("*.py")]:
        assert not any(name.split(".")[0] == "studies" for name in imports_of(path)), path
