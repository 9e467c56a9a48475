"""The `candlewick` command: words in, a function of `candlewick.commands` called, errors in one line.

Everything heavy is imported by the command that needs it; `candlewick --help` imports no model and no executor.
"""

from __future__ import annotations

import enum
import math
import sys
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
except ModuleNotFoundError:  # the library alone wants NumPy only
    sys.exit("candlewick: the command line needs typer and rich: pip install 'candlewick[cli]'")

from candlewick.commands.common import Failure, failures, only_with

app = typer.Typer(
    help="Speech recognition, image segmentation and text generation in Python, as in the browser page; and a look inside.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]})
bench = typer.Typer(help="Measure; prints one JSON object. Run it on an idle machine.", no_args_is_help=True)
app.add_typer(bench, name="bench")

DEFAULT_MODEL = "whisper-tiny.en"
SAM_MODEL = "mobilesam"
TEXT_MODEL = "smollm2-135m-instruct"


def number(kind: type[int] | type[float], low: float = -math.inf, high: float = math.inf) -> dict[str, Any]:
    """Arguments of an option that is a number within limits: how it is read, and what help shows for it."""
    limits = f" from {low} to {high}" if high < math.inf else f" from {low} on" if low > -math.inf else ""

    def parse(text: Any) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan  # which lies within no limits
        if not (low <= value <= high and math.isfinite(value)):
            raise typer.BadParameter(f"wanted a {'whole ' if kind is int else ''}number{limits}, got {text}")
        return value

    return {"parser": parse, "metavar": {(0, 1): "0..1", (1, 128): "1..128"}.get((low, high), "N" if kind is int else "X")}


def examples(*commands: str) -> str:
    """What stands at the end of a command's help, a line each."""
    return "\n\n".join(("Examples:", *commands))


class Executor(enum.StrEnum):
    auto = "auto"
    numpy = "numpy"
    wasm = "wasm"
    webgpu = "webgpu"


class Task(enum.StrEnum):
    transcribe = "transcribe"
    translate = "translate"


class Format(enum.StrEnum):
    txt = "txt"
    srt = "srt"
    vtt = "vtt"
    json = "json"


ModelOption = Annotated[str, typer.Option("--model", "-m", help="Checkpoint folder, or the name of one under models/.")]
ThreadsOption = Annotated[int | None, typer.Option(
    **number(int, 1, 256), help=(
        "Threads of the wasm executor; default: one in CPython, as many as the page takes in a browser."))]
SpeechModelOption = Annotated[str, typer.Option("--model", "-m", help=(
    "Checkpoint folder, the name of one under models/, or a whisper.cpp .bin file."))]
TextModelOption = Annotated[str, typer.Option("--model", "-m", help=(
    "Checkpoint folder, the name of one under models/, or a .gguf or llama2.c .bin file."))]
CapacityOption = Annotated[int | None, typer.Option(
    **number(int, 1), help="Positions of the KV cache; default: what the model allows, at most 2048.")]

StartsOption = Annotated[int | None, typer.Option(
    **number(int, 1), help="With --browser: fresh starts measured; default: as many as --runs.")]


def version(show: bool) -> None:
    if show:
        from candlewick import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def main_options(_version: Annotated[bool, typer.Option("--version", callback=version, is_eager=True,
                                                        help="Print the version.")] = False) -> None:
    pass


@app.command(epilog=examples(
    "candlewick transcribe talk.mp3",
    "candlewick transcribe talk.wav --format srt -o talk.srt",
    'candlewick transcribe interview.flac --prompt "Ada Lovelace, Charles Babbage" --beam 5'))
def transcribe(
    audio: Annotated[Path, typer.Argument(help="Recording: WAV of any depth; FLAC, MP3, Ogg, AIFF.")],
    model: SpeechModelOption = DEFAULT_MODEL,
    executor: Annotated[Executor, typer.Option(help="numpy is the quickest in CPython.")] = Executor.numpy,
    threads: ThreadsOption = None,
    format: Annotated[Format, typer.Option("--format", "-f", help="What to write.")] = Format.txt,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File; default: standard output.")] = None,
    prompt: Annotated[str | None, typer.Option(help="The text before: names, spelling, style.")] = None,
    carry_prompt: Annotated[bool, typer.Option("--carry-prompt", help="Tell it before every 30 s, not once.")] = False,
    hotwords: Annotated[str | None, typer.Option(help="Words to expect, told before every 30 s.")] = None,
    beam: Annotated[int | None, typer.Option(**number(int), help="Follow N transcripts at a time (5 is usual).")] = None,
    patience: Annotated[float | None, typer.Option(**number(float), help=(
        "Of --beam: 2 looks twice as long for better ones."))] = None,
    length_penalty: Annotated[float | None, typer.Option(**number(float), help=(
        "0 to 1; default: the mean of its tokens ranks a text."))] = None,
    best_of: Annotated[int | None, typer.Option(**number(int), help="Where it has to guess: N tries, the best one.")] = None,
    fast: Annotated[bool, typer.Option("--fast", help=(
        "Listen to less than 30 s where less is left: quicker for short recordings, words may differ."))] = False,
    language: Annotated[str | None, typer.Option(help="Code such as en or de; default: found out by itself.")] = None,
    temperature: Annotated[float | None, typer.Option(**number(float, 0, 1), help=(
        "Sample at this one, no fallback."))] = None,
    task: Annotated[Task, typer.Option(help="translate: into English (multilingual models).")] = Task.transcribe,
    timestamps: Annotated[bool, typer.Option(help="Seek by the model's timestamps; without, 30 s at a time.")] = True,
    words: Annotated[bool, typer.Option("--words", help="Find out when each word is said (in --format json).")] = False,
    line: Annotated[int | None, typer.Option(**number(int, 1) | {"metavar": "CHARACTERS"}, help=(
        "Cut into lines of at most so many, between words; 1: a word a line."))] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Write down what is said in AUDIO: text on standard output, progress on standard error."""
    with failures(input="recording"):
        from candlewick.commands.transcribe import transcribe as run

        only_with("--carry-prompt", carry_prompt, "--prompt", prompt is not None)
        only_with("--words", words, "--format json, or --line", format == Format.json or line is not None)
        run(audio, model, executor.value, threads, format.value, output, quiet, line,
            options={
                "initial_prompt": prompt, "carry_initial_prompt": carry_prompt, "hotwords": hotwords, "beam_size": beam,
                "patience": patience, "length_penalty": length_penalty, "best_of": best_of,
                "context": "short" if fast else None, "language": language, "timestamps": timestamps, "task": task.value,
                "word_timestamps": words or line is not None,
                "temperatures": None if temperature is None else (temperature,)})


@app.command(epilog=examples(
    "candlewick segment cat.jpg --point 400,300 -o cutout.png",
    "candlewick segment cat.jpg --box 100,80,500,420 --point 300,90,0 -o mask.png",
    "candlewick segment street.jpg --everything -o objects.json"))
def segment(
    image: Annotated[Path, typer.Argument(help="Picture: JPEG, PNG, WebP, GIF, BMP, TIFF.")],
    point: Annotated[list[str] | None, typer.Option("--point", "-p", metavar="X,Y[,LABEL]", help=(
        "A place in the object, in pixels; label 0: a place that is not in it. May be given again."))] = None,
    box: Annotated[str | None, typer.Option(metavar="X0,Y0,X1,Y1", help="Two corners around the object.")] = None,
    everything: Annotated[bool, typer.Option("--everything", help="All objects, from a grid of points.")] = False,
    multimask: Annotated[bool, typer.Option("--multimask", help="Three candidates, best first.")] = False,
    cutout: Annotated[bool, typer.Option("--cutout", help="PNG: the object on a transparent ground.")] = False,
    points_per_side: Annotated[int | None, typer.Option(**number(int, 1, 128), help=(
        "Of the grid of --everything; default: 32."))] = None,
    model: Annotated[str, typer.Option("--model", "-m", help=(
        "Checkpoint folder, the name of one under models/, or a MobileSAM .pt."))] = SAM_MODEL,
    executor: Annotated[Executor, typer.Option(help="auto: wasm where it runs, else numpy.")] = Executor.auto,
    threads: ThreadsOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help=(
        "x.png (mask; cut-out where the name holds the word cutout), x.json (COCO run lengths), x.svg; "
        "default: JSON on standard output."))] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Cut an object out of IMAGE: point at it, or draw a box around it."""
    with failures(input="picture"):
        from candlewick.commands.segment import segment as run

        named = output is not None and "cutout" in output.stem and output.suffix.lower() == ".png" and not everything
        run(image, model, executor.value, threads, point or [], box, everything, multimask, cutout or named,
            points_per_side, output, quiet)


@app.command(epilog=examples(
    'candlewick generate "Once upon a time" --max-tokens 60',
    'candlewick generate --chat "Name three birds." --greedy',
    "candlewick generate --chat --model my-model.gguf"))
def generate(
    prompt: Annotated[str | None, typer.Argument(metavar="[PROMPT]", help=(
        "Text to go on from, with --chat a question; - or nothing reads standard input."))] = None,
    chat: Annotated[bool, typer.Option("--chat", help=(
        "Question and answer; without PROMPT a conversation, a line a question."))] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: who the model is to be, and how it is to answer.")] = None,
    model: TextModelOption = TEXT_MODEL,
    tokenizer: Annotated[Path | None, typer.Option(help="tokenizer.bin of a llama2.c file, if not beside it.")] = None,
    max_tokens: Annotated[int | None, typer.Option(**number(int, 1), help="Longest answer.")] = None,
    temperature: Annotated[float | None, typer.Option(**number(float, 0), help=(
        "0 always takes the likeliest token."))] = None,
    top_k: Annotated[int | None, typer.Option(**number(int, 0), help="Choose among so many; 0: all.")] = None,
    top_p: Annotated[float | None, typer.Option(**number(float, 0, 1), help=(
        "Choose among the best that make up this share."))] = None,
    min_p: Annotated[float | None, typer.Option(**number(float, 0, 1), help=(
        "Leave out what is below this share of the best."))] = None,
    repeat_penalty: Annotated[float | None, typer.Option(**number(float, 0), help=(
        "Above 1: less of what was just said."))] = None,
    seed: Annotated[int | None, typer.Option(**number(int, 0), help=(
        "Same seed, same text; default: another one each time."))] = None,
    stop: Annotated[list[str] | None, typer.Option("--stop", help="End before this text; may be given again.")] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Always the likeliest token, without a penalty.")] = False,
    executor: Annotated[Executor, typer.Option(help="auto: wasm where it runs, else numpy.")] = Executor.auto,
    threads: ThreadsOption = None,
    capacity: CapacityOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object instead of text; with --chat one a line.")] = False,
    logprobs: Annotated[bool, typer.Option("--logprobs", help=(
        "Log-probability of each token and of what else was likely."))] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Nothing but the text.")] = False,
) -> None:
    """Write on from PROMPT, or chat: text on standard output as it comes. Ctrl-C stops and keeps it."""
    given = {"max_tokens": max_tokens, "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p,
             "repeat_penalty": repeat_penalty, "seed": seed, "stop": tuple(stop or ()), "greedy": greedy or None}
    if greedy and repeat_penalty is None:
        given["repeat_penalty"] = 1.0
    with failures():
        from candlewick.commands.generate import Settings
        from candlewick.commands.generate import generate as run

        for name in ("temperature", "top_k", "top_p", "min_p"):
            if greedy and given[name] not in (None, 0):
                raise Failure(f"--{name.replace('_', '-')} {given[name]}: --greedy always takes the likeliest token; leave one "
                              "of the two out")
        run(prompt, chat, Settings(
            model, tokenizer, executor.value, threads, capacity, system, as_json=as_json, logprobs=logprobs, quiet=quiet,
            options={name: value for name, value in given.items() if value is not None}))


class Dtype(enum.StrEnum):
    f32 = "f32"
    f16 = "f16"
    bf16 = "bf16"
    q8_0 = "q8_0"
    q6_k = "q6_k"
    q5_1 = "q5_1"
    q5_0 = "q5_0"
    q4_k = "q4_k"
    q4_1 = "q4_1"
    q4_0 = "q4_0"


@app.command(epilog=examples(
    "candlewick convert my-model/ my-model.gguf --dtype q4_1",
    "candlewick convert my-model.gguf my-model/"))
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help=(
        "A language model: .gguf, llama2.c .bin, a folder in the layout of Hugging Face, or the name of one under models/."))],
    target: Annotated[Path, typer.Argument(metavar="OUT", help=(
        "x.gguf, x.bin (llama2.c, with tokenizer.bin beside it), or a new folder (safetensors)."))],
    dtype: Annotated[Dtype | None, typer.Option(help=(
        "Type of the matrices; default: as they are. Of 4 and 5 bits, the embeddings take q8_0 (q4_k: q6_k). Folders hold "
        "f32, f16 and bf16; llama2.c files f32 and q8_0 (its int8)."))] = None,
    tokenizer: Annotated[Path | None, typer.Option(help="The tokenizer.bin of a llama2.c file, if it lies elsewhere.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
) -> None:
    """Convert a llama model between GGUF, safetensors and llama2.c, its tokenizer and chat template with it."""
    with failures(model="model", output="output"):
        from candlewick.commands.convert import convert as run

        run(source, target, None if dtype is None else dtype.value, tokenizer, quiet)


@app.command(epilog=examples(
    "candlewick inspect model.safetensors",
    "candlewick inspect whisper-tiny.en --json"))
def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help=(
        "A weights file (safetensors, GGUF, llama2.c .bin, PyTorch .pt or .bin, .npz, ONNX), a checkpoint folder, or the name "
        "of one under models/."))],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """List the tensors of FILE with dtype, shape and bytes, and its metadata. Reads the header only."""
    with failures():
        from candlewick.commands.inspect import inspect as run

        run(path, as_json)


@app.command(epilog=examples(
    "candlewick graph whisper-tiny.en",
    "candlewick graph whisper-tiny.en decode_1 -o step.svg"))
def graph(
    model: Annotated[str, typer.Argument(help="Checkpoint folder or name, or a .gguf file.")],
    entry: Annotated[str | None, typer.Argument(help="Which Program; without it, their names are listed.")] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="x.txt, x.dot, x.svg or x.json.")] = None,
    passes: Annotated[bool, typer.Option(help="After the passes (fused), or as the model was traced.")] = True,
) -> None:
    """Print the Program that ENTRY of MODEL is traced to, or draw it."""
    with failures(model="model", entry="entry"):
        from candlewick.commands.graph import graph as run

        run(model, entry, output, passes)


@app.command(epilog=examples(
    "candlewick compare whisper-tiny.en --input talk.wav",
    "candlewick compare mobilesam --executors numpy,webgpu --browser"))
def compare(
    model: Annotated[str, typer.Argument(help="Checkpoint folder or name, or a .gguf file.")],
    executors: Annotated[str, typer.Option(help="Two executors; the first one is the reference.")] = "numpy,wasm",
    browser: Annotated[bool, typer.Option("--browser", help="In Chromium: every kernel, and a step of MODEL.")] = False,
    input: Annotated[Path | None, typer.Option("--input", help="Recording to run on; default: noise.")] = None,
    threads: ThreadsOption = None,
    tolerance: Annotated[float | None, typer.Option(**number(float, 0), help=(
        "Allowed error, as a share of a value's largest magnitude; default: 0.001."))] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Run every entry of MODEL on two executors, instruction by instruction; exit status 1 if they differ.

    wasm rounds what meets a quantised weight to 8 bits, numpy does not: such models want a --tolerance of 0.05.

    With --browser each instruction is compared alone, with a tolerance of its own, and every kernel besides, on odd sizes; with
    webgpu on this machine's GPU, or on Chromium's emulator where there is none.
    """
    with failures(model="model"):
        if browser:
            from candlewick.commands.compare_browser import compare_in_browser

            for name, given in (("input", input), ("tolerance", tolerance)):
                if given is not None:
                    raise Failure(f"--{name} {given}: --browser has inputs and a tolerance of its own for each kernel; leave "
                                  "one of the two out")
            same = compare_in_browser(model, executors, threads, as_json)
        else:
            from candlewick.commands.compare import compare as run

            same = run(model, executors, input, threads, 1e-3 if tolerance is None else tolerance, as_json)
    if not same:
        raise typer.Exit(1)


@bench.command("transcribe", epilog=examples("candlewick bench transcribe --input talk.wav --browser --runs 3"))
def bench_transcribe(
    input: Annotated[Path, typer.Option("--input", help="Recording to transcribe.")],
    browser: Annotated[bool, typer.Option("--browser", help="In headless Chromium, with the page's worker.")] = False,
    model: ModelOption = DEFAULT_MODEL,
    executor: Annotated[Executor, typer.Option()] = Executor.wasm,
    threads: ThreadsOption = None,
    runs: Annotated[int, typer.Option(**number(int, 1), help="Transcriptions measured, after one that warms up.")] = 5,
    starts: StartsOption = None,
    json: Annotated[str, typer.Option("--json", metavar="OUT", help="JSON file; - is standard output.")] = "-",
) -> None:
    """Transcribe the same recording again and again and print what took how long."""
    with failures(output="--json"):
        from candlewick.commands.bench_transcribe import bench_transcribe as run

        only_with("--starts", starts is not None, "--browser", browser)
        run(input, browser, model, executor.value, threads, runs, starts or runs, json)


@bench.command("segment", epilog=examples("candlewick bench segment --input cat.jpg --executor wasm"))
def bench_segment(
    input: Annotated[Path, typer.Option("--input", help="Picture to segment.")],
    point: Annotated[list[str] | None, typer.Option("--point", "-p", metavar="X,Y[,LABEL]", help=(
        "In pixels; default: the middle of the picture."))] = None,
    box: Annotated[str | None, typer.Option(metavar="X0,Y0,X1,Y1")] = None,
    browser: Annotated[bool, typer.Option("--browser", help="In headless Chromium, with the page's worker.")] = False,
    model: ModelOption = SAM_MODEL,
    executor: Annotated[Executor, typer.Option()] = Executor.wasm,
    threads: ThreadsOption = None,
    runs: Annotated[int, typer.Option(**number(int, 1), help=(
        "Pictures measured, three clicks each, after one that warms up."))] = 5,
    starts: StartsOption = None,
    json: Annotated[str, typer.Option("--json", metavar="OUT", help="JSON file; - is standard output.")] = "-",
) -> None:
    """Encode the same picture again and again, click into it, and print what took how long."""
    with failures(output="--json"):
        from candlewick.commands.bench_segment import bench_segment as run

        only_with("--starts", starts is not None, "--browser", browser)
        run(input, browser, model, executor.value, threads, runs, starts or runs, point or [], box, json)


@bench.command("generate", epilog=examples("candlewick bench generate --prompt-file prompt.txt --browser --json report.json"))
def bench_generate(
    prompt_file: Annotated[Path, typer.Option("--prompt-file", metavar="F", help="Text file with the prompt.")],
    max_tokens: Annotated[int, typer.Option(**number(int, 2), help="Tokens of each run.")] = 64,
    browser: Annotated[bool, typer.Option("--browser", help="In headless Chromium, with the page's worker.")] = False,
    model: TextModelOption = TEXT_MODEL,
    executor: Annotated[Executor, typer.Option()] = Executor.wasm,
    threads: ThreadsOption = None,
    capacity: CapacityOption = None,
    runs: Annotated[int, typer.Option(**number(int, 1), help="Generations measured, after one that warms up.")] = 5,
    starts: StartsOption = None,
    profile: Annotated[bool, typer.Option("--profile", help="Time the instructions of a decode step, too.")] = False,
    json: Annotated[str, typer.Option("--json", metavar="OUT", help="JSON file; - is standard output.")] = "-",
) -> None:
    """Continue the same prompt again and again, always by the likeliest token, and print what took how long."""
    with failures(output="--json", input="--prompt-file"):
        from candlewick.commands.bench_generate import bench_generate as run

        only_with("--starts", starts is not None, "--browser", browser)
        only_with("--profile", profile, "--browser", browser)
        run(prompt_file, browser, model, executor.value, threads, capacity, max_tokens, runs, starts or runs, profile, json)


def main() -> None:
    app(prog_name="candlewick")


if __name__ == "__main__":
    main()
