from __future__ import annotations

from tests.visualize.figures.pictures import png_size
from visualize.figures.activations import cka_figure


def test_cka_of_many_networks_is_drawn_with_the_first_only(tmp_path, for_papers):
    names = [f"skipless_initialised_with_a_long_label_{index}-eigenvalue_corrected" for index in range(5)]
    pairs = [{"left": a, "right": b, "matrix": [[1.0, None]]} for i, a in enumerate(names) for b in names[i:]]
    figure = cka_figure(pairs, tmp_path / "cka")
    assert figure.alt.count(" with skipless") == 2 * 5 - 1
    assert png_size(figure)[0] <= 3 * 2.9 * 150 + 1
