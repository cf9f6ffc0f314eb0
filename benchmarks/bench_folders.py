"""Formats that folders are read as, and what the rules that recognise label maps take their images for.

    OMP_NUM_THREADS=1 python -m benchmarks.bench_folders FOLDER ... [--images 2000]

For each folder are printed the line that commands say of it, whether its photographs are all images as they are listed,
and processor seconds; then, of at most so many of its images, evenly spread, how many are a photograph, a drawing, a
label map ... by content alone, JPEGs too, and milliseconds an image with decoding. Of a folder of real photographs
every label map is a false alarm, of a folder of label maps every photograph is one that is missed.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from pathlib import Path

from dinoskip.data import list_images
from dinoskip.data.recognise import recognise
from dinoskip.data.recognise.content import content_of_file
from dinoskip.data.recognise.label_maps import spread
from dinoskip.errors import DataError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--images", type=int, default=2000)
    args = parser.parse_args()
    for folder in args.folders:
        names, begin = list_images(folder), time.process_time()
        try:
            reading = recognise(folder)
            said, same = reading.line, reading.photographs == names
        except DataError as error:
            said, same = f"refused: {error}", False
        print(f"{folder}: {said}")
        print(f"  {len(names):,} images, all taken: {same}, {time.process_time() - begin:.2f} s")
        chosen, begin = spread(names, args.images), time.process_time()
        kinds = Counter(content_of_file(folder / name).kind for name in chosen)
        counted = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
        each = 1000 * (time.process_time() - begin) / len(chosen)
        print(f"  by content, {len(chosen):,}: {counted}; {each:.1f} ms each")


if __name__ == "__main__":
    main()
