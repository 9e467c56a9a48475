"""Llama checkpoints of every kind -> configuration and tensors in Hugging Face's names.

GGUF (its names: github.com/ggml-org/ggml, `docs/gguf.md`), llama2.c, and folders in the layout of Hugging Face with
safetensors, .npz or PyTorch files. Rows of the query and key matrices keep the order that the file has: `rope_pairs` says
which, neighbours turned together (GGUF's llama, llama2.c) or halves (Hugging Face, GGUF's qwen2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from candlewick.weights import gguf, llama2c
from candlewick.weights.load import INDEX, Checkpoint, read_shards, some
from candlewick.weights.npz import read_npz
from candlewick.weights.pth import read_state_dict
from candlewick.weights.safetensors import TensorInfo
from candlewick.weights.source import CONFIG_JSON, ByteSource, Origin, WeightsError

ARCHITECTURES = ("llama", "qwen2")  # of GGUF files
MODEL_TYPES = ("llama", "mistral", "qwen2")  # of config.json
PYTORCH, PYTORCH_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
EPSILON, BASE = 1e-5, 10000.0  # of llama2.c, which keeps neither

OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}  # GGUF -> Hugging Face
INNER = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
GGUF_NAMES = {  # config.json -> metadata, behind the architecture
    "hidden_size": "embedding_length", "intermediate_size": "feed_forward_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count", "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length", "vocab_size": "vocab_size", "max_position_embeddings": "context_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon", "rope_theta": "rope.freq_base", "rope_scaling": "rope.scaling",
    "rope_factors": "rope_freqs.weight", "sliding_window": "attention.sliding_window",
}  # fmt: skip
LLAMA2C_NAMES = {  # config.json -> header
    "hidden_size": "dim", "intermediate_size": "hidden_dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
    "num_key_value_heads": "n_kv_heads", "max_position_embeddings": "max_seq_len",
}  # fmt: skip
ROPE_FACTORS = "rope_freqs.weight"
LLAMA2C = {  # llama2.c -> Hugging Face
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
}  # fmt: skip
LLAMA2C_OUTER = {"tok_embeddings": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}


@dataclass(frozen=True)
class TokenizerFiles:
    """What text/tokenizers.py makes a tokenizer of: kind "json", "gguf", "llama2c" or "words", the data, settings beside it,
    and the file that it is all from."""

    kind: str
    data: Any
    config: dict[str, Any] = field(default_factory=dict)
    file: str = "tokenizer.json"


@dataclass(frozen=True)
class LlamaFiles:
    """A checkpoint, whatever it came in. config: LlamaConfig's names and `rope_pairs`, `rope_factors`."""

    config: dict[str, Any]
    tensors: dict[str, TensorInfo]
    tokenizer: TokenizerFiles
    chat_template: str | None
    name: str
    metadata: dict[str, Any] = field(default_factory=dict)  # what else a GGUF file says
    origin: Origin = CONFIG_JSON


async def read_llama(checkpoint: Checkpoint) -> LlamaFiles:
    """Headers and small files of a checkpoint; no weights. Sources that had to be made are put into `checkpoint.files`.

    Raises WeightsError for what is no llama checkpoint, incomplete, or of a kind that is not supported.
    """
    names = list(checkpoint.files)
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    if ggufs:
        return await _from_gguf(checkpoint, ggufs)
    if "config.json" in names:
        return await _from_folder(checkpoint)
    if any(name.lower().endswith(".bin") for name in names):
        return await _from_llama2c(checkpoint)
    raise WeightsError(f"{checkpoint.name}: no llama checkpoint: wanted a .gguf file, a llama2.c .bin with its tokenizer.bin, "
                       f"or config.json with tokenizer.json and weights; there is {some(sorted(names)) or 'nothing'}")


# ---- GGUF -------------------------------------------------------------------------------------------------------


async def _from_gguf(checkpoint: Checkpoint, files: list[str]) -> LlamaFiles:
    if len(files) > 1:
        raise WeightsError(f"{checkpoint.name}: {len(files)} GGUF files ({some(sorted(files))}); give one. Parts of one model "
                           "must be merged first (llama.cpp's gguf-split --merge)")
    file = files[0]
    header = await gguf.read_header(checkpoint.files[file])
    metadata = header.metadata
    rows = {info.name: replace(info, file=file) for info in header.tensors}
    config = gguf_config(metadata, rows, file)
    if (factors := rows.pop(ROPE_FACTORS, None)) is not None:
        config["rope_factors"] = (await checkpoint.read(factors)).ravel().tolist()
    tensors = {from_gguf_name(name): replace(info, name=from_gguf_name(name)) for name, info in rows.items()}
    template = metadata.get("tokenizer.chat_template")
    names = {ours: f"{config['model_type']}.{theirs}" for ours, theirs in GGUF_NAMES.items()}
    return LlamaFiles(config, tensors, TokenizerFiles("gguf", metadata, file=file), _text(template),
                      _text(metadata.get("general.name")) or checkpoint.name, metadata, Origin(file, names))


def from_gguf_name(name: str) -> str:
    """blk.0.attn_q.weight -> model.layers.0.self_attn.q_proj.weight; unknown names stay as they are."""
    head, _, kind = name.rpartition(".")
    if head in OUTER:
        return f"{OUTER[head]}.{kind}"
    block, _, part = head.removeprefix("blk.").partition(".")
    if head.startswith("blk.") and part in INNER:
        return f"model.layers.{block}.{INNER[part]}.{kind}"
    return name


def to_gguf_name(name: str) -> str:
    """model.layers.0.self_attn.q_proj.weight -> blk.0.attn_q.weight. Raises WeightsError for a tensor GGUF has no name for."""
    head, _, kind = name.rpartition(".")
    for theirs, ours in OUTER.items():
        if head == ours:
            return f"{theirs}.{kind}"
    layer, _, part = head.removeprefix("model.layers.").partition(".")
    for theirs, ours in INNER.items():
        if part == ours and layer.isdecimal():
            return f"blk.{layer}.{theirs}.{kind}"
    raise WeightsError(f"tensor {name!r} has no name in a GGUF file of a llama")


def gguf_config(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo], file: str) -> dict[str, Any]:
    """Metadata -> configuration. Raises WeightsError for architectures and settings that are not supported."""
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise WeightsError(f"{file}: its architecture is {str(architecture)[:60]!r}; supported are {', '.join(ARCHITECTURES)}")

    def get(key: str, kinds: tuple[type, ...], default: Any = None) -> Any:
        value = metadata.get(f"{architecture}.{key}", default)
        if value is None:
            raise WeightsError(f"{file}: the metadata lack {architecture}.{key}")
        if hasattr(value, "tolist"):  # one number for each layer; we have one for all
            value = value.tolist()
            value = value[0] if value and all(v == value[0] for v in value) else value
        if type(value) not in kinds:
            raise WeightsError(f"{file}: {architecture}.{key} must be one {kinds[0].__name__}, got {str(value)[:80]}")
        return value

    def whole(key: str, default: int | None = None) -> int:
        return get(key, (int,), default)

    def number(key: str, default: float | None = None) -> float:
        return float(get(key, (float, int), default))

    if whole("expert_count", 0):
        raise WeightsError(f"{file}: a mixture of {whole('expert_count')} experts; only models without experts are supported")
    embedding = tensors.get("token_embd.weight")
    n_vocab = embedding.shape[0] if embedding is not None and len(embedding.shape) == 2 else None
    dim, heads = whole("embedding_length"), whole("attention.head_count")
    head_dim = whole("attention.key_length", dim // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if whole(key, head_dim) != head_dim:
            raise WeightsError(f"{file}: {architecture}.{key} is {whole(key)}, heads are {head_dim} wide; only models where "
                               "both are equal are supported")
    ids = {f"{name}_token_id": _id(metadata.get(f"tokenizer.ggml.{name}_token_id"), name, file) for name in ("bos", "eos")}
    return {
        "model_type": architecture,
        "hidden_size": dim, "intermediate_size": whole("feed_forward_length"), "num_hidden_layers": whole("block_count"),
        "num_attention_heads": heads, "num_key_value_heads": whole("attention.head_count_kv", heads), "head_dim": head_dim,
        "vocab_size": n_vocab or whole("vocab_size"), "max_position_embeddings": whole("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"), "rope_theta": number("rope.freq_base", BASE),
        "rope_scaling": _gguf_scaling(get("rope.scaling.type", (str,), "none"), number("rope.scaling.factor", 0),
                                      number("rope.scale_linear", 1), file),
        "tie_word_embeddings": "output.weight" not in tensors, "sliding_window": whole("attention.sliding_window", 0) or None,
        "rope_pairs": architecture == "llama", **ids,
    }  # fmt: skip


def _gguf_scaling(kind: str, factor: float, older: float, file: str) -> dict[str, Any] | None:
    """rope.scaling.type and .factor, or the older rope.scale_linear -> rope_scaling"""
    if kind == "none" and older not in (0, 1):
        kind, factor = "linear", older
    if kind == "none":
        return None
    if kind != "linear" or not factor > 0:
        raise WeightsError(f"{file}: rope.scaling.type {kind[:40]!r} with factor {factor:g}; supported are none, linear (with "
                           f"a factor above 0) and llama3 (a tensor {ROPE_FACTORS})")
    return {"rope_type": "linear", "factor": factor}


def _id(value: Any, name: str, file: str) -> int | None:
    if value is not None and (type(value) is not int or value < 0):
        raise WeightsError(f"{file}: tokenizer.ggml.{name}_token_id must be a whole number, got {str(value)[:40]}")
    return value


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


# ---- llama2.c ---------------------------------------------------------------------------------------------------


async def _from_llama2c(checkpoint: Checkpoint) -> LlamaFiles:
    files = [name for name in checkpoint.files if name.lower().endswith(".bin")]
    models, refusals = {}, {}
    for file in files:
        try:
            models[file] = await llama2c.read_header(checkpoint.files[file])
        except WeightsError as error:
            refusals[file] = str(error)
    named = [file for file in files if file.lower().startswith("tok")]
    if len(files) == 1 and not models:  # it may have been meant for Whisper
        raise WeightsError(f"{files[0]}: neither a whisper.cpp model nor a llama2.c one ({refusals[files[0]]})")
    if len(models) != 1:
        told = [refusals[file] for file in files if file in refusals and file not in named] or list(refusals.values())
        if not models:
            raise WeightsError(f"{checkpoint.name}: wanted one llama2.c model, none of {some(sorted(files))} is: {told[0]}")
        raise WeightsError(f"{checkpoint.name}: wanted one llama2.c model, {len(models)} of {some(sorted(files))} are: give "
                           "one model and its tokenizer")
    file, model = next(iter(models.items()))
    beside = [name for name in files if name != file]
    beside = [name for name in beside if name == "tokenizer.bin"] or beside
    if len(beside) != 1:
        raise WeightsError(f"{checkpoint.name}: {file} needs the tokenizer it was trained with, a llama2.c tokenizer.bin "
                           f"beside it; there is {some(sorted(n for n in checkpoint.files if n != file)) or 'nothing else'}")
    checkpoint.files.update(model.sources)
    tensors = {}
    for theirs, info in model.tensors.items():
        name = from_llama2c_name(theirs)
        tensors[name] = replace(info, name=name, file=file if info.file == checkpoint.files[file].name else info.file)
    tokenizer = checkpoint.files[beside[0]]
    data = await tokenizer.read(0, tokenizer.size)
    words = TokenizerFiles("llama2c", data, {"vocab_size": model.sizes.vocab_size}, tokenizer.name)
    return LlamaFiles(llama2c_config(model.sizes), tensors, words, None, file.rpartition(".")[0],
                      origin=Origin(file, LLAMA2C_NAMES))


def from_llama2c_name(name: str) -> str:
    """layers.0.attention.wq.weight -> model.layers.0.self_attn.q_proj.weight"""
    head = name.removesuffix(".weight")
    if head in LLAMA2C_OUTER:
        return f"{LLAMA2C_OUTER[head]}.weight"
    layer, _, part = head.removeprefix("layers.").partition(".")
    return f"model.layers.{layer}.{LLAMA2C[part]}.weight"


def llama2c_config(sizes: llama2c.Sizes) -> dict[str, Any]:
    """Header -> configuration; llama2.c's constants fill what the header lacks."""
    return {
        "model_type": "llama",
        "hidden_size": sizes.dim, "intermediate_size": sizes.hidden_dim, "num_hidden_layers": sizes.n_layers,
        "num_attention_heads": sizes.n_heads, "num_key_value_heads": sizes.n_kv_heads, "head_dim": sizes.head_dim,
        "vocab_size": sizes.vocab_size, "max_position_embeddings": sizes.max_seq_len,
        "rms_norm_eps": EPSILON, "rope_theta": BASE, "rope_scaling": None, "tie_word_embeddings": sizes.shared,
        "sliding_window": None, "rope_pairs": True, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip


# ---- folders in the layout of Hugging Face ----------------------------------------------------------------------


async def _from_folder(checkpoint: Checkpoint) -> LlamaFiles:
    files = checkpoint.files
    config = folder_config(await checkpoint.json("config.json"), f"{checkpoint.name}/config.json")
    generation = await checkpoint.json("generation_config.json") if "generation_config.json" in files else {}
    settings = await checkpoint.json("tokenizer_config.json") if "tokenizer_config.json" in files else {}
    ids = {key: config.get(key) if generation.get(key) is None else generation[key]
           for key in ("bos_token_id", "eos_token_id")}
    if "tokenizer.json" not in files:
        raise WeightsError(f"{checkpoint.name}: tokenizer.json is missing; the folder has {some(sorted(files))}. Where there "
                           "is only a tokenizer.model, transformers' save_pretrained of the fast tokenizer writes it")
    tokenizer = TokenizerFiles("json", await checkpoint.large_json("tokenizer.json"), {**settings, **ids})
    tensors = with_prefix(await folder_tensors(checkpoint))
    return LlamaFiles({**config, **ids, "rope_pairs": False}, tensors, tokenizer, await _chat_template(checkpoint, settings),
                      checkpoint.name, origin=Origin(f"{checkpoint.name}/config.json"))


def folder_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A config.json -> the same in the names of LlamaConfig. Raises WeightsError for what is not supported."""
    kind = config.get("model_type")
    if kind not in MODEL_TYPES:
        raise WeightsError(f"{where}: model_type {str(kind)[:60]!r}; supported are {', '.join(MODEL_TYPES)}")
    if (packed := config.get("quantization_config")) is not None:
        method = packed.get("quant_method") if isinstance(packed, dict) else packed
        raise WeightsError(f"{where}: weights packed by {str(method)[:40]!r} are not read; take the plain weights, or a GGUF "
                           "file")
    if config.get("partial_rotary_factor", 1) != 1:
        raise WeightsError(f"{where}: partial_rotary_factor {config['partial_rotary_factor']}; only 1 is supported")
    out = dict(config)
    rope = out.pop("rope_parameters", None)  # as newer versions of transformers write it
    if isinstance(rope, dict):
        out["rope_theta"] = rope.get("rope_theta", out.get("rope_theta", BASE))
        rest = {key: value for key, value in rope.items() if key != "rope_theta"}
        if not out.get("rope_scaling"):
            out["rope_scaling"] = rest if rest.get("rope_type", "default") != "default" else None
    if kind == "qwen2" and not out.get("use_sliding_window"):
        out["sliding_window"] = None
    return out


async def folder_tensors(checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    """Tensors of whichever weights a folder holds, under their own names: safetensors first, then PyTorch, then .npz."""
    files = checkpoint.files

    def ending(*suffixes: str) -> list[str]:
        return sorted(name for name in files if name.lower().endswith(suffixes) and name != "training_args.bin")

    if INDEX in files or ending(".safetensors"):
        return await checkpoint.tensors()
    if PYTORCH_INDEX in files and PYTORCH not in files:
        return await read_shards(checkpoint, PYTORCH_INDEX, lambda file: _pytorch(checkpoint, file))
    torch, arrays = ending(".bin", ".pt", ".pth"), ending(".npz")
    if PYTORCH in torch or len(torch) == 1:
        return await _pytorch(checkpoint, PYTORCH if PYTORCH in torch else torch[0])
    if len(arrays) == 1 and not torch:
        found = await read_npz(files[arrays[0]], arrays[0])
        return _adopted(checkpoint, found.tensors, found.sources)
    raise WeightsError(f"{checkpoint.name}: wants model.safetensors (or shards with their index), {PYTORCH} or one .npz; the "
                       f"folder has {some(sorted(files)) or 'no files'}")


async def _pytorch(checkpoint: Checkpoint, file: str) -> dict[str, TensorInfo]:
    found = await read_state_dict(checkpoint.files[file], file)
    return _adopted(checkpoint, found.tensors, found.sources)


def _adopted(checkpoint: Checkpoint, tensors: dict[str, TensorInfo], sources: dict[str, ByteSource]) -> dict[str, TensorInfo]:
    checkpoint.files.update(sources)
    return tensors


def with_prefix(tensors: Mapping[str, TensorInfo]) -> dict[str, TensorInfo]:
    """Names as of a model with its head: a file of the bare network lacks `model.` everywhere."""
    if "embed_tokens.weight" not in tensors:
        return dict(tensors)
    names = {name: name if name.startswith("lm_head.") else f"model.{name}" for name in tensors}
    return {names[name]: replace(info, name=names[name]) for name, info in tensors.items()}


async def _chat_template(checkpoint: Checkpoint, settings: Mapping[str, Any]) -> str | None:
    """chat_template.jinja, or tokenizer_config.json's chat_template: a text, or several with names."""
    if "chat_template.jinja" in checkpoint.files:
        return await checkpoint.text("chat_template.jinja")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named: Iterable[Any] = (row for row in template if isinstance(row, dict) and row.get("name") == "default")
        template = next((row.get("template") for row in named), None)
    return _text(template)
