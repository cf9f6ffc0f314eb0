"""Commands and options that there are not: the answer names the one that is meant."""

import pytest

from dinoskip.cli import main


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("prob --backbone a", "'prob' is no command: did you mean probe?"),
        ("validate study.yaml", "'validate' is no command: `dinoskip plan CONFIG` checks every setting and the data"),
        ("features exprt", "'exprt' is no command: did you mean export?"),
        ("knn --backbone a --images b --out c", "no option --images: this command takes --data"),
        ("knn --dataset b", "no option --dataset: this command takes --data"),
        ("tokencut --weights a.safetensors", "no option --weights: this command takes --backbone"),
        ("tokencut --output a", "no option --output: this command takes --out"),
        ("gallery --bakbone a", "no option --bakbone: did you mean --backbone?"),
    ],
)
def test_what_is_meant(line: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {said}")
    assert error.count("\n") == 1


def test_commands_of_scripts_are_not_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["requeu"])
    assert "requeue" not in capsys.readouterr().err


def test_abbreviations_stay(capsys: pytest.CaptureFixture[str]) -> None:
    for line in ("plan configs/none.yaml --js", "features export --dat none --backbone dino:none.pth --out none"):
        assert main(line.split()) in (2, 3)
        assert "no option" not in capsys.readouterr().err
