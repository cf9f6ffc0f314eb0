"""Fuzzing: valid files with bytes changed, cut out, repeated or cut off, and what may come of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dinoskip.errors import DataError

EXTREMES = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\xff\xff\xff\x7f", b"\0\1\0\0")


@st.composite
def mutated(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """One of ``seeds`` after up to six changes."""
    content = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 6))):
        length = len(content)
        # Most of what can go wrong is decided in the first bytes and in the last.
        near = st.integers(0, min(64, length))
        start = draw(st.one_of(near, st.integers(0, length), near.map(lambda back, length=length: length - back)))
        stop = start + draw(st.integers(1, 32))
        kind = draw(st.sampled_from(("byte", "number", "remove", "repeat", "insert", "end")))
        if kind == "byte":
            content[start : start + 1] = bytes([draw(st.integers(0, 255))])
        elif kind == "number":  # sizes, counts and offsets at their extremes
            content[start : start + 4] = draw(st.sampled_from(EXTREMES))
        elif kind == "remove":
            del content[start:stop]
        elif kind == "repeat":
            content[start:start] = content[start:stop] * draw(st.integers(1, 20))
        elif kind == "insert":
            content[start:start] = draw(st.binary(max_size=24))
        else:
            del content[start:]
    return bytes(content)


def refused(call: Callable[[], object], named: str) -> bool:
    """Whether ``call`` ended in a :class:`DataError`, one line that names the file; other exceptions pass."""
    try:
        call()
    except DataError as error:
        message = str(error)
    else:
        return False
    assert named in message
    assert "\n" not in message
    return True


def attack(seeds: Sequence[bytes], check: Callable[[bytes], None], cases: int) -> None:
    """Call ``check`` on ``cases`` mutations of ``seeds``, the same ones in every run."""

    @settings(
        max_examples=cases, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(mutated(seeds))
    def run(content: bytes) -> None:
        check(content)

    run()
