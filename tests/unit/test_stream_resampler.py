"""Sound that is still coming is resampled to the same samples as if it had come at once."""

from __future__ import annotations

import numpy as np
import pytest

from candlewick import executors
from candlewick.audio import Resampler, StreamResampler


@pytest.mark.parametrize("rate", [48000, 44100, 22050, 8000, 16000])
@pytest.mark.parametrize("piece", [1, 97, 1920, 48000])
async def test_pieces_are_as_good_as_the_whole(rate, piece):
    n = 700 if piece == 1 else 2 * rate + 17
    x = np.random.default_rng(rate).standard_normal(n).astype(np.float32)
    executor = executors.create("numpy")
    whole = await Resampler(executor).resample(x, rate)
    stream = StreamResampler(Resampler(executor, 0.1), rate)
    parts = [await stream.push(x[at : at + piece]) for at in range(0, n, piece)]
    parts.append(await stream.push(x[:0], last=True))
    found = np.concatenate(parts)
    assert len(found) == len(whole)
    assert np.abs(found - whole).max() < 1e-5
    assert len(stream._have) < 0.2 * rate + piece, "sound that is done with is let go of"


async def test_what_is_known_comes_at_once():
    """At 48 kHz no more than a tenth of a second, and the reach of the filter, is held back."""
    stream = StreamResampler(Resampler(executors.create("numpy"), 0.1), 48000)
    made = 0
    for second in range(1, 11):
        made += sum([len(await stream.push(np.ones(4800, np.float32))) for _ in range(10)])
        assert 16000 * second - 16000 * 0.11 < made <= 16000 * second
