from __future__ import annotations

from dinoskip.resize import short_side_size


def test_sizes_are_torchvisions_for_every_image_up_to_500_pixels() -> None:
    from torchvision.transforms.functional import _compute_resized_output_size

    sizes = [(height, width) for height in range(1, 501) for width in range(1, height + 1)]
    wrong = [size for size in sizes if short_side_size(*size, 256) != tuple(_compute_resized_output_size(size, [256]))]
    assert not wrong
    assert short_side_size(300, 40, 256) == short_side_size(40, 300, 256)[::-1]
