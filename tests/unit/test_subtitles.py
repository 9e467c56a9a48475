"""Transcripts as text, SubRip, WebVTT and JSON."""

from __future__ import annotations

import json

from candlewick.models.whisper.subtitles import clock, in_lines, to_json, to_srt, to_txt, to_vtt

RESULT = {"text": "Hello world. <b>1 & 2</b> --> end", "segments": [
    {"id": 0, "start": 0.0, "end": 2.5, "text": " Hello world."},
    {"id": 1, "start": 2.5, "end": 3671.04, "text": " <b>1 & 2</b>\n\n --> end"}]}
EMPTY = {"text": "", "segments": []}


def test_formats():
    assert to_txt(RESULT) == "Hello world.\n<b>1 & 2</b> --> end\n"
    assert to_srt(RESULT) == ("1\n00:00:00,000 --> 00:00:02,500\nHello world.\n\n"
                              "2\n00:00:02,500 --> 01:01:11,040\n<b>1 & 2</b> -> end\n\n")
    assert to_vtt(RESULT) == ("WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nHello world.\n\n"
                              "00:00:02.500 --> 01:01:11.040\n&lt;b&gt;1 &amp; 2&lt;/b&gt; --&gt; end\n\n")
    assert json.loads(to_json(RESULT)) == RESULT and to_json({"text": "é"}) == '{\n  "text": "é"\n}\n'


def test_nothing_said():
    assert (to_txt(EMPTY), to_srt(EMPTY), to_vtt(EMPTY)) == ("", "", "WEBVTT\n\n")


def test_lines():
    """Cut between words, times from the words; 1 is a word a line; what has no words stays whole."""
    texts = [" One", " two", " three,", " incomprehensible", "."]
    words = [{"word": text, "start": i, "end": i + 0.5} for i, text in enumerate(texts)]
    result = {"text": "", "segments": [{"id": 0, "start": 0, "end": 9, "text": "".join(texts), "words": words},
                                       {"id": 1, "start": 9, "end": 10, "text": " Whole segment."}]}
    lines = in_lines(result, 8)["segments"]
    assert [(s["id"], s["text"], s["start"], s["end"]) for s in lines] == [
        (0, " One two", 0, 1.5), (1, " three,", 2, 2.5), (2, " incomprehensible", 3, 3.5), (3, ".", 4, 4.5),
        (4, " Whole segment.", 9, 10)]
    assert [s["text"] for s in in_lines(result, 1)["segments"]] == texts + [" Whole segment."]
    assert [s["text"] for s in in_lines(result, 100)["segments"]] == [s["text"] for s in result["segments"]]


def test_clock():
    assert [clock(s, ".") for s in (0, 0.0005, 59.9999, 3599.9994, 359999.999)] == [
        "00:00:00.000", "00:00:00.001", "00:01:00.000", "00:59:59.999", "99:59:59.999"]
