from __future__ import annotations

from visualize.figures import network_figures, signal_figure, weights_figure


def test_signal_and_weights_rows_become_panels(tmp_path):
    rows = [
        {
            "name": name,
            "token_cosine": [0.4, 0.5],
            "effective_rank": [60.0, 30.0],
            "query_gradient": [1.0, 1e-9],
            "final_cosine": 0.6,
            "final_effective_rank": 20.0,
        }
        for name in ("skip", "skipless default")
    ]
    assert "query gradient: skip from 1 to 1e-09" in signal_figure(rows, tmp_path / "s.svg").alt
    weights = [
        {"block": 1, "kappa_vo": 1.0, "logit_diagonal": 18.4},
        {"block": 2, "kappa_vo": 2.0, "logit_diagonal": 1.0},
    ]
    assert "from 1 to 2" in weights_figure({"trained": {"a": weights}}, tmp_path / "w.svg", caption="c").alt


def analysed(**more):
    """Return the analysis of one network of two blocks."""
    rows = [{"block": block, "token_cosine": 0.5 + 0.2 * block, "kappa_weights": 3.0, **more} for block in (1, 2)]
    return {"inside": {"net": {"rows": rows, "histograms": {}}}, "sqnr": {"net": {"site": {"8": 30.0}}}, "cka": []}


def test_a_condition_number_at_the_limit_of_float64_is_blamed_on_the_tokens(tmp_path):
    figures = network_figures(analysed(kappa_weights=1e15), tmp_path)
    assert "net at blocks 1, 2, cosine 0.80" in figures[0].reading
    assert "does not say that the weights are badly conditioned" in figures[0].reading
    plain = network_figures(analysed(), tmp_path)
    assert "10¹⁴" not in plain[0].reading
    assert all(figure.reading.endswith(".") for figure in plain)
