"""The page writes TXT, SRT and VTT exactly as Python does, and JSON with the same values."""

from __future__ import annotations

import json

import pytest

from candlewick.models.whisper import subtitles
from tests.browser.pages import visit

RESULTS = {
    "plain": [(0.0, 2.5, " Once upon a time,"), (2.5, 3671.5, " there was a candle.")],
    "nothing": [],
    "marks": [(0, 1.02, "  a --> b  <b>bold</b> & 'more'\n\nnext\tword\x1c\x85\u3000end "), (1.02, 1.04, "")],
    "rounding": [(0.0005, 0.0015, "half a millisecond"), (59.9996, 359999.9994, "carries")],
    "letters": [(0, 1, " Grüße, 世界 🕯️ \ufeff\u200b.")],
}


@pytest.fixture(scope="module")
def page(browser, site):
    with visit(browser, site, "/web/") as page:
        yield page


@pytest.mark.parametrize("name", RESULTS)
def test_same_as_python(page, name):
    segments = [{"id": i, "start": a, "end": b, "text": t, "avg_logprob": -0.25} for i, (a, b, t) in enumerate(RESULTS[name])]
    result = {"text": "".join(s["text"] for s in segments), "segments": segments, "language": "en", "no_speech": not segments}
    written = page.evaluate(
        """async (result) => {
          const { formats } = await import("/web/lib/formats.js");
          return Object.fromEntries(Object.entries(formats).map(([name, { write }]) => [name, write(result)]));
        }""",
        result,
    )
    assert written["txt"] == subtitles.to_txt(result)
    assert written["srt"] == subtitles.to_srt(result)
    assert written["vtt"] == subtitles.to_vtt(result)
    assert json.loads(written["json"]) == json.loads(subtitles.to_json(result)) == result
