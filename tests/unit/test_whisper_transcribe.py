"""The transcribe task on the miniatures: bad input, silence, loops, limits, stopping, languages.

Where a test needs a decoder that misbehaves, only the logits are made up: `Scripted` runs everything else for real.
"""

from __future__ import annotations

import json
import re
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from candlewick import executors
from candlewick.models.whisper import TranscribeOptions, Transcriber, load_model
from candlewick.models.whisper.model import Dims
from candlewick.weights.load import Checkpoint
from tests.golden.whisper import clips

MODELS = Path(__file__).resolve().parents[2] / "models"
ENGLISH, MULTILINGUAL = MODELS / "test-whisper", MODELS / "test-whisper-multilingual"
WINDOW = 2.0  # seconds, of the English miniature
GREEDY = TranscribeOptions(temperatures=(0.0,))


async def loaded(folder: Path = ENGLISH) -> Transcriber:
    return await Transcriber.load(Checkpoint.open(folder), executors.create("numpy"))


async def events(transcriber, audio, options=GREEDY, stop=None) -> list[dict]:
    return [e async for e in transcriber.transcribe(np.asarray(audio, np.float32), options, stop)]


async def result(*args, **kwargs) -> dict:
    return (await events(*args, **kwargs))[-1]["result"]


class Scripted:
    """An executor whose decoder answers from a script: script(tokens read so far) -> {token: logit}, others are -20."""

    def __init__(self, transcriber: Transcriber, script: Callable[[list[int]], dict[int, float]]) -> None:
        self.real, self.script, self.read, self.windows = transcriber.executor, script, [], []
        self.programs, self.load = self.real.programs, self.real.load
        self.n_vocab, self.eot = transcriber.model.dims.n_vocab, transcriber.model.tokenizer.eot
        self.begin = transcriber.model.tokenizer.timestamp_begin
        self.suppress = transcriber.model.network.readout.suppress.array
        transcriber.executor = self

    def describe(self):
        return self.real.describe()

    async def run(self, entry, inputs, fetch=None):
        if not entry.startswith("decode"):
            if entry == "encode":
                self.windows.append(self.read)
                self.read = []
            return await self.real.run(entry, inputs, fetch)
        await self.real.run(entry, inputs, ())  # the real limits: positions, ids
        tokens = inputs["tokens"][0, : inputs["last"] + 1].tolist()
        self.read = self.read[: inputs["pos"]] + tokens
        if fetch == ():
            return {}
        logits = np.full(self.n_vocab, -20.0, np.float32)
        for token, value in self.script(self.read).items():
            logits[token] = value
        allowed = logits + self.suppress
        best = [number for part in (allowed[: self.eot], allowed[self.eot : self.begin])
                for number in (part.argmax(), part.max(), np.log(np.exp(part.astype(np.float64)).sum()))]
        outputs = {"logits": logits[None], "best": np.array([best], np.float32), "times": allowed[None, self.begin :]}
        return {name: outputs[name] for name in fetch or outputs}


# ---- what comes in --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("n", [0, 1, 100, 159, 160, 161, 199, 200, 201, 400, 1600, 31999, 32000, 32001])
@pytest.mark.parametrize("level", [0.0, 0.5])
async def test_any_length(n, level):
    """BR-10: no crash, progress that is never NaN, times inside; nothing at once for nothing."""
    audio = level * np.sin(np.arange(n) * 0.3)
    seen = await events(await loaded(), audio)
    final = seen[-1]["result"]
    progress = [e["done"] for e in seen if e["event"] == "progress"]
    assert all(np.isfinite(p) for p in progress) and progress == sorted(progress)
    assert (len(seen) == 1 and final["text"] == "" and final["no_speech"]) if n == 0 else progress[-1] == n / 16000
    assert all(0 <= s["start"] <= s["end"] <= n / 16000 for s in final["segments"])
    assert level or final["no_speech"]


async def test_what_is_no_recording():
    t = await loaded()
    with pytest.raises(ValueError, match=r"mono samples.*\[10, 2\]"):
        await events(t, np.zeros((10, 2)))
    with pytest.raises(ValueError, match="not finite"):
        await events(t, [0.0, np.nan, 0.0])
    assert (await result(t, clips.chirp(2)))["segments"]  # and it goes on working


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("scale", [32768.0, 2.0**31, 1e20, 1e30])
async def test_samples_in_other_units(scale):
    """Floats that hold 16-bit numbers, or anything huge, are heard as the same sound at full scale; nothing overflows."""
    sound = clips.chirp(2)
    sound = sound / np.abs(sound).max()
    wanted, found = await result(await loaded(), sound), await result(await loaded(), sound * scale)
    assert wanted["segments"] and found["text"] == wanted["text"]


@pytest.mark.parametrize("seconds", [2.0, 30.0])
@pytest.mark.parametrize("dither", [0.0, 1e-7, 1 / 32768])
async def test_silence_says_nothing(seconds, dither):
    """BR-06: zeros, and zeros with dither of up to one step of 16 bits: finite, empty, and said to be no speech."""
    rng = np.random.default_rng(0)
    audio = dither * (rng.random(round(seconds * 16000)) - rng.random(round(seconds * 16000)))
    final = await result(await loaded(), audio)
    assert final["text"] == "" and final["segments"] == [] and final["no_speech"] is True
    assert final["timings"]["tokens"] == 0


async def test_faint_sound_is_heard():
    """BR-06, the other way: at -80 dB it is not taken for silence."""
    assert (await result(await loaded(), clips.chirp(3) * 1e-4))["segments"]


async def test_silent_tail_adds_nothing():
    """BR-07: windows with nothing in them are not decoded; a leftover of up to 0.1 s is no window."""
    t = await loaded()
    speech = clips.chirp(WINDOW)
    script = Scripted(t, single_segment(t))
    texts = []
    for seconds in (WINDOW, WINDOW + 0.05, WINDOW + 0.1, WINDOW + 1, WINDOW + 10):
        audio = np.zeros(round(seconds * 16000), np.float32)
        audio[: len(speech)] = speech
        texts.append((await result(t, audio))["text"])
        assert len(script.windows) == len(texts)
    assert set(texts) == {"The lamp"}
    audio = np.concatenate([speech, clips.chirp(0.1)])  # sound in it, but too short to be worth a window
    assert (await result(t, audio))["text"] == "The lamp"


def single_segment(t: Transcriber):
    """A script that says one thing: from the start of the window to its end, or to where the sound ends."""
    tokenizer = t.model.tokenizer
    words = [tokenizer.timestamp_begin, *tokenizer.encode("The lamp"), tokenizer.timestamp_begin + 100, tokenizer.eot]

    def script(read):
        said = read[read.index(tokenizer.sot) + 1 :]
        return {words[min(len(said), len(words) - 1)]: 20.0}
    return script


# ---- loops and limits -----------------------------------------------------------------------------------------------

async def test_a_loop_is_met_with_other_temperatures_and_left_behind():
    """BR-08: a decoder that prefers one phrase for ever: each temperature is tried, the text is not handed on, seek goes
    on through the whole recording."""
    t = await loaded()
    tokenizer = t.model.tokenizer
    phrase = tokenizer.encode(" the lamp")
    prompts = []

    def script(read):
        begin = read.index(tokenizer.sot) + 1
        said = read[begin:]
        if not said:
            prompts.append(read[:begin])
        return {tokenizer.timestamp_begin: 20.0} if not said else {phrase[(len(said) - 1) % len(phrase)]: 20.0}

    Scripted(t, script)
    seen = await events(t, clips.chirp(3 * WINDOW), TranscribeOptions(compression_ratio_threshold=1.5))
    segments = seen[-1]["result"]["segments"]
    assert len(segments) == 3 and {s["temperature"] for s in segments} == {1.0}
    assert [s["start"] for s in segments] == [0.0, 2.0, 4.0]
    assert prompts == [[tokenizer.sot]] * 3  # nothing of it is told to the next window
    assert all(s["compression_ratio"] > 1.5 for s in segments)


async def test_good_text_is_context_for_the_next_window():
    t = await loaded()
    tokenizer = t.model.tokenizer
    for condition in (True, False):
        script = Scripted(t, single_segment(t))
        options = TranscribeOptions(temperatures=(0.0,), condition_on_previous_text=condition, initial_prompt="boats")
        await events(t, clips.chirp(2 * WINDOW), options)
        first, second = script.windows[1:] + [script.read]
        t.executor = script.real
        assert first[0] == tokenizer.start_of_prev and tokenizer.decode(first[: first.index(tokenizer.sot)]) == " boats"
        before = second[: second.index(tokenizer.sot)]
        assert (tokenizer.decode(before) == " boatsThe lamp") if condition else before == []


async def test_prompt_and_transcript_stay_within_the_context():
    """BR-11: a prompt of 600 tokens and a decoder that never ends: no index error, the segment is closed normally."""
    t = await loaded()
    tokenizer = t.model.tokenizer
    word = tokenizer.encode("w")[0]
    script = Scripted(t, lambda read: {tokenizer.timestamp_begin: 20.0, word: 20.0})
    options = TranscribeOptions(temperatures=(0.0,), initial_prompt="z" * 599 + "w", compression_ratio_threshold=None)
    final = await result(t, clips.chirp(WINDOW), options)
    assert len(script.read) <= 64 and script.read[:1] == [tokenizer.start_of_prev]
    assert script.read[script.read.index(tokenizer.sot) - 1] == word  # the most recent part is kept
    assert len(final["segments"]) == 1 and final["segments"][0]["end"] == 2.0
    assert len(script.read) == 64 and len(final["segments"][0]["tokens"]) == 32  # the last one is not read any more
    assert await result(t, clips.chirp(2 * WINDOW), options)


async def test_a_pair_of_timestamps_at_the_start_does_not_stand_still():
    """BR-08: seek goes on by more than the 0.02 s that such a pair says."""
    t = await loaded()
    tokenizer = t.model.tokenizer
    word, zero = tokenizer.encode("w")[0], tokenizer.timestamp_begin

    def script(read):
        said = read[read.index(tokenizer.sot) + 1 :]
        return {([zero, word, zero, zero, tokenizer.eot] + [tokenizer.eot] * 9)[len(said)]: 20.0}

    scripted = Scripted(t, script)
    await events(t, clips.chirp(3 * WINDOW))
    assert len(scripted.windows) <= 4


async def test_times_end_with_the_recording():
    """BR-09: the last window is padded, its segments are not."""
    for seconds in (1.234, 5.17, 6.66):
        final = await result(await loaded(), clips.chirp(seconds))
        times = [x for s in final["segments"] for x in (s["start"], s["end"])]
        assert times and times == sorted(times) and 0 <= times[0] and times[-1] <= final["duration"] == pytest.approx(seconds)


async def test_no_speech_needs_both_signs():
    """A high no-speech probability alone does not drop a transcript that the model is sure of."""
    t = await loaded()
    tokenizer = t.model.tokenizer
    words = [tokenizer.timestamp_begin, *tokenizer.encode("The lamp"), tokenizer.timestamp_begin + 100, tokenizer.eot]
    for sure, wanted in ((20.0, "The lamp"), (-17.0, "")):
        def script(read, sure=sure):
            said = read[read.index(tokenizer.sot) + 1 :]
            scores = {words[min(len(said), len(words) - 1)]: sure}
            return scores | {tokenizer.no_speech: 25.0} if not said else scores
        scripted = Scripted(t, script)
        final = await result(t, clips.chirp(WINDOW))
        t.executor = scripted.real
        assert final["text"] == wanted and final["no_speech"] == (wanted == "")


async def test_guesses_where_the_model_half_says_that_nobody_speaks():
    """Our own rule: tones and music come as words of no certainty at a no-speech probability of a half. Such words alone
    (a model in doubt), or such a probability alone, do not drop a transcript."""
    t = await loaded()
    tokenizer = t.model.tokenizer
    words = [tokenizer.timestamp_begin, *tokenizer.encode("The lamp"), tokenizer.timestamp_begin + 100, tokenizer.eot]
    for sure, no_speech, kept in ((20.0, 20.0, True), (-17.0, 20.0, False), (-17.0, -20.0, True)):
        def script(read, sure=sure, no_speech=no_speech):
            said = read[read.index(tokenizer.sot) + 1 :]
            if said:
                return {words[min(len(said), len(words) - 1)]: sure}
            return {tokenizer.no_speech: no_speech, words[0]: 20.0}  # equal scores: a half each
        scripted = Scripted(t, script)
        final = await result(t, clips.chirp(WINDOW), TranscribeOptions(temperatures=(0.0,)))
        t.executor = scripted.real
        assert final["text"].startswith("The") == kept and final["no_speech"] != kept, (sure, no_speech)


# ---- stopping -------------------------------------------------------------------------------------------------------

async def test_stop_at_every_step():
    """BR-49: it ends at once with what there is, marked; and the next run equals a fresh one."""
    t = await loaded()
    audio = clips.chirp(3 * WINDOW)
    whole = await result(t, audio)
    for patience in (0, 1, 2, 5, 20, 60):
        asked = iter(range(10**6))
        seen = await events(t, audio, stop=lambda: next(asked) >= patience)
        final = seen[-1]["result"]
        assert final["stopped"] and next(asked) <= patience + 2
        assert final["segments"] == whole["segments"][: len(final["segments"])] or patience
    again = await result(t, audio, stop=lambda: False)
    assert not again["stopped"] and again["segments"] == whole["segments"]


async def test_a_stopped_executor_ends_the_run():
    t = await loaded()

    class Halted:
        async def run(self, *args, **kwargs):
            raise executors.Stopped
    real, t.executor = t.executor, Halted()
    final = await result(t, clips.chirp(1))
    t.executor = real
    assert final["stopped"] and final["segments"] == []


async def test_a_long_recording_takes_the_memory_of_a_window():
    """Beside the recording itself, what is held does not grow with its length."""
    t = await loaded()
    Scripted(t, single_segment(t))
    await result(t, clips.chirp(4))
    peaks = []
    for seconds in (20, 80):
        audio = np.resize(clips.chirp(5), seconds * 16000)
        tracemalloc.start()
        final = await result(t, audio)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert len(final["segments"]) == seconds // 2 and final["segments"][-1]["end"] == seconds
    assert peaks[1] < peaks[0] + 500_000  # the segments themselves


# ---- options and kinds of checkpoint ----------------------------------------------------------------------------------

async def test_events_tell_one_story():
    seen = await events(await loaded(), clips.chirp(7))
    final = seen[-1]["result"]
    assert [e["segment"] for e in seen if e["event"] == "segment"] == final["segments"]
    assert [s["id"] for s in final["segments"]] == list(range(len(final["segments"])))
    assert final["text"] == "".join(s["text"] for s in final["segments"]).strip()
    stages = [e["stage"] for e in seen if e["event"] == "progress"]
    assert stages[0] == "mel" and stages[-1] == "transcribe"
    assert json.loads(json.dumps(final)) == final
    assert final["timings"]["tokens"] > 0 and final["timings"]["total_ms"] >= final["timings"]["decode_ms"] > 0


async def test_same_seed_same_text():
    t = await loaded()
    def said(r):
        return [s["tokens"] for s in r["segments"]]
    a, b, c = [said(await result(t, clips.chirp(4), TranscribeOptions(temperatures=(0.9,), seed=s))) for s in (1, 1, 2)]
    assert a == b != c


async def test_languages():
    t = await loaded(MULTILINGUAL)
    assert t.describe()["languages"] == ["en", "zh", "de", "es"] and t.describe()["multilingual"]
    found = await result(t, clips.chirp(3))
    assert found["language"] in t.describe()["languages"] and 0.25 < found["language_probability"] <= 1
    given = await result(t, clips.chirp(3), TranscribeOptions(language="de", task="translate", temperatures=(0.0,)))
    assert given["language"] == "de" and given["language_probability"] is None
    scripted = Scripted(t, lambda read: {t.model.tokenizer.timestamp_begin: 20.0, t.model.tokenizer.encode("w")[0]: 20.0})
    await result(t, clips.chirp(3), TranscribeOptions(language="es", task="translate", temperatures=(0.0,)))
    tokenizer = t.model.tokenizer
    assert scripted.read[:3] == [tokenizer.sot, tokenizer.languages["es"], tokenizer.translate]
    with pytest.raises(ValueError, match="'fr'.*en, zh, de, es"):
        await events(t, clips.chirp(1), TranscribeOptions(language="fr"))


async def test_an_english_checkpoint_says_so():
    t = await loaded()
    for options in (TranscribeOptions(language="de"), TranscribeOptions(task="translate")):
        with pytest.raises(ValueError, match="English-only"):
            await events(t, clips.chirp(1), options)
    assert (await result(t, clips.chirp(1), TranscribeOptions(language="en", temperatures=(0.0,))))["language"] == "en"


@pytest.mark.parametrize("wrong", [
    {"task": "sing"}, {"temperatures": ()}, {"temperatures": (-1,)}, {"temperatures": 0.5}, {"temperatures": "0.5"},
    {"temperatures": (float("nan"),)}, {"temperatures": (True,)}, {"temperatures": None}, {"logprob_threshold": "-1"},
    {"compression_ratio_threshold": float("inf")}, {"no_speech_threshold": [0.6]}, {"max_initial_timestamp": "1"},
    {"max_initial_timestamp": float("nan")}, {"max_initial_timestamp": -1.0}, {"max_initial_timestamp": 10**400}, {"seed": 1.5},
    {"seed": "1"}, {"seed": None},
])
def test_options_that_make_no_sense(wrong):
    (name, value), = wrong.items()
    with pytest.raises(ValueError, match=f"^{name}: (wanted|there are) .*, got {re.escape(repr(value))}$"):
        TranscribeOptions(**wrong)


# ---- files that do not fit each other -----------------------------------------------------------------------------------

def mixed(tmp_path: Path, **files: Path) -> Checkpoint:
    """The English miniature with some files of another folder."""
    folder = tmp_path / "mixed"
    folder.mkdir()
    for file in ("config.json", "generation_config.json", "tokenizer.json", "model.safetensors"):
        shutil.copy((files.get(file.split(".")[0]) or ENGLISH) / file, folder)
    return Checkpoint.open(folder)


@pytest.mark.parametrize(("files", "words"), [
    ({"tokenizer": MULTILINGUAL, "generation_config": MULTILINGUAL},
     r"tokenizer.json is multilingual and has 472.*config.json.*469.*weights.*469"),
    ({"config": MULTILINGUAL}, r"vocabulary: tokenizer.json is English-only.*config.json \(vocab_size\) has 522"),
    ({"model": MULTILINGUAL}, r"the weights .* has 522"),
])
async def test_mixed_kinds_are_told_at_load(tmp_path, files, words):
    """BR-12: both sizes and the file names, before anything runs."""
    with pytest.raises(ValueError, match=words):
        await load_model(mixed(tmp_path, **files))


async def test_real_tokenizer_with_the_wrong_kind(tmp_path):
    if not (MODELS / "whisper-tiny.en/tokenizer.json").exists():
        pytest.skip("no models/whisper-tiny.en; python3 serve.py --setup fetches it")
    checkpoint = mixed(tmp_path, tokenizer=MODELS / "whisper-tiny.en", generation_config=MULTILINGUAL)
    with pytest.raises(ValueError, match=r"English-only, but generation_config.json says is_multilingual True"):
        await load_model(checkpoint)


async def test_old_folders_without_a_generation_config(tmp_path):
    """Older folders keep those entries in config.json, or nowhere: the steering tokens are suppressed all the same."""
    checkpoint = mixed(tmp_path)
    checkpoint.files.pop("generation_config.json")
    model = await load_model(checkpoint)
    assert model.tokenizer.sot in model.tokenizer.suppressed(model.generation_config)
    assert model.tokenizer.eot in model.tokenizer.blank(model.generation_config) and not model.tokenizer.multilingual


@pytest.mark.parametrize(("change", "words"), [
    ({"d_model": None}, "d_model"), ({"num_mel_bins": "80", "vocab_size": None}, "num_mel_bins, vocab_size"),
    ({"decoder_attention_heads": 3}, "not a multiple of decoder_attention_heads 3"),
    ({"scale_embedding": True}, "scale_embedding"), ({"activation_function": "relu"}, "gelu")])
def test_configs_that_are_no_whisper(change, words):
    config = json.loads((ENGLISH / "config.json").read_text())
    with pytest.raises(ValueError, match=words):
        Dims.from_config({**config, **change})


async def test_a_tokenizer_of_another_model(tmp_path):
    mixed(tmp_path)
    spec = json.loads((ENGLISH / "tokenizer.json").read_text())
    spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] != "<|startoftranscript|>"]
    path = tmp_path / "mixed/tokenizer.json"
    path.write_text(json.dumps(spec))
    with pytest.raises(ValueError, match=r"startoftranscript.*belongs to another model"):
        await load_model(Checkpoint.open(tmp_path / "mixed"))
