"""One grammar: the network is positional everywhere, tasks are ``eval TASK``, what all have is said once."""

from __future__ import annotations

import re
from argparse import SUPPRESS
from pathlib import Path

import pytest

from dinoskip.cli import _parse, _parser, main
from dinoskip.cli.arguments import blocks_of, networks_and_settings
from dinoskip.errors import ConfigError
from dinoskip.settings.tasks import TASKS


def said(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_lists_every_command_in_sixty_lines(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = said(["--help"], capsys).splitlines()
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    listed = [found[1] for line in lines if (found := re.match(r" {4}(\S+) +\S", line))]
    assert sorted(listed) == sorted(_parser().command_names)


def test_shared_options_are_in_the_help_of_eval_alone(capsys: pytest.CaptureFixture[str]) -> None:
    shared = {"--data", "--kind", "--out", "--blocks", "--json", "--csv", "--accept", "--device", "--workers"}
    of_all = said(["eval", "--help"], capsys)
    assert all(f"  {option}" in of_all for option in shared)
    parsers = _parser()._commands.choices["eval"]._commands.choices
    assert list(parsers) == list(TASKS)
    for name, parser in parsers.items():
        taken = {option: action for action in parser._actions for option in action.option_strings}
        assert shared <= set(taken), name
        assert all(taken[option].help == SUPPRESS for option in shared), name
        assert {option.flag for option in TASKS[name].options} <= set(taken), name


def test_networks_and_settings_stand_anywhere() -> None:
    spec = "timm:vit_tiny_patch16_224,pretrained=false"
    args = _parse(["eval", "knn", spec, "--data", "d", "run:x", "--out", "o", "evaluate.knn.size=64"])
    assert networks_and_settings(args.network) == ([spec, "run:x"], ["evaluate.knn.size=64"])
    assert args.kind == TASKS["knn"].data_kind
    with pytest.raises(ConfigError, match="NETWORK"):
        networks_and_settings(["evaluate.knn.size=64"])


def test_a_checkpoint_that_is_called_as_a_setting_is_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("epoch=3.ckpt").touch()
    assert networks_and_settings(["epoch=3.ckpt", "epoch=4"]) == (["epoch=3.ckpt"], ["epoch=4"])


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("all", "all"), ("3-6", [3, 4, 5, 6]), ("12,1,3-4,4", [1, 3, 4, 12]), ("7", [7]), ("2-2", [2])],
)
def test_ranges_of_blocks(text: str, numbers: object) -> None:
    assert blocks_of(text) == numbers


@pytest.mark.parametrize("text", ["6-3", "0", "0-3", "1-99999999", "a", "", "3-", "-3", "1..3"])
def test_what_is_no_block_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--blocks"):
        blocks_of(text)
