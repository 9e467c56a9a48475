"""Transcripts as text, SubRip, WebVTT and JSON."""

from __future__ import annotations

import json

from candlewick.models.whisper.subtitles import clock, to_json, to_srt, to_txt, to_vtt

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


def test_clock():
    assert [clock(s, ".") for s in (0, 0.0005, 59.9999, 3599.9994, 359999.999)] == [
        "00:00:00.000", "00:00:00.001", "00:01:00.000", "00:59:59.999", "99:59:59.999"]
