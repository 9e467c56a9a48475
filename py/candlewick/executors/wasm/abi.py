"""The kernel table of the wasm executor: what crosses from `lower.py` to the C kernels, one line a kernel.

A Plan is a list of int32 words, `[kernel id, number of words, arguments...]` an instruction. This table is the only place
that says which argument stands where: `lower.py` packs from it and `build.py` writes `kernels/abi.h` (ids and one struct a
kernel) from it, so that the two sides cannot disagree.

Conventions: a name of an address is in bytes from the start of kernel memory (0 = absent where the kernel allows that);
strides and sizes are in elements; names in FLOATS are float32 bit patterns; activations are float32, ids int32.
"""

PANEL = 12
"""Columns in one weight panel. A 3 x 12 register tile needs 9 accumulators, the most that V8 keeps in registers."""

QPANEL = 8
"""Rows in one panel of a block-quantised weight: two vectors of four rows share what is broadcast of x."""

THREAD_SCRATCH_BYTES = 1 << 19
"""Private scratch of each thread: one float32 panel block of a half-precision weight, or one attention tile."""

FLOATS = {"eps", "scale", "value"}

KERNELS: dict[str, tuple[str, ...]] = {
    # y[m, n] = final(activation(x[m, k] . w[n, k] + bias[n]) + residual[m, n]); w in panels; rows of x may overlap (conv1d).
    # count: address of an int32, or 0: rows from there on are zeros.
    "linear": ("x", "ldx", "w", "bias", "residual", "ldr", "y", "ldy", "m", "n", "k", "w_dtype", "activation", "final",
               "count"),
    # The same with a block-quantised w; scratch (quantised_scratch_bytes) holds the quantised rows of x where m > 1.
    # norm (or 0): weights of an rms_norm that x goes through first. times (or 0): a second weight like w, and then
    # y = silu(x . w) (x . times).
    "linear_q": ("x", "ldx", "w", "bias", "residual", "ldr", "y", "ldy", "m", "n", "k", "w_dtype", "activation", "final",
                 "count", "scratch", "norm", "eps", "times"),
    # One head after another: y = softmax(scale q.k^T) v. causal: query i sees keys <= *start + i.
    # n_group query heads share one key head. scratch holds the packed keys and values when n_q is large, else 0. bias
    # (or 0) is added to the scores: head h, query i, key j at h * bias_head + i * bias_row + j.
    "attention": ("q", "q_head", "q_row", "k", "k_head", "k_row", "v", "v_head", "v_row", "y", "y_head", "y_row",
                  "n_head", "n_group", "n_q", "n_k", "d", "scale", "causal", "start", "scratch",
                  "bias", "bias_head", "bias_row"),
    "layer_norm": ("x", "w", "b", "y", "m", "n", "eps"),
    # ids[m] -> y[m, n]; table is a weight in panels of `PANEL` rows.
    "embedding": ("ids", "table", "y", "m", "n", "n_rows", "w_dtype"),
    "embedding_q": ("ids", "table", "y", "m", "n", "n_rows", "w_dtype"),
    # Up to four dimensions, float32 or int32 words. `offset` is the address of an int32 (or 0) multiplied by offset_stride,
    # clamped to [0, offset_max] first, and added to dst (into_dst = 1) or src (into_dst = 0): update and dynamic rows.
    "copy": ("src", "dst", "d0", "d1", "d2", "d3", "s0", "s1", "s2", "s3", "t0", "t1", "t2", "t3",
             "offset", "offset_stride", "offset_max", "into_dst"),
    "fill": ("dst", "count", "value"),
    # op: UNARY index; y[i] = op(x[i])
    "unary": ("op", "x", "y", "count"),
    # op: BINARY index; y[i, j] = a[i * a_outer + j * a_inner] op b[i * b_outer + j * b_inner], strides 0 or more
    "binary": ("op", "a", "a_outer", "a_inner", "b", "b_outer", "b_inner", "y", "n_outer", "n_inner"),
    # op: REDUCE index; y[i] = op over j of x[i * n + j]; argmax writes int32
    "reduce": ("op", "x", "y", "m", "n"),
    # log = 1: log_softmax. Row by row.
    "softmax": ("x", "y", "m", "n", "log"),
    # Pictures are (batch, height, width, channels). w in panels, k in the order (kh, kw, c_in), y as for linear.
    "conv2d": ("x", "batch", "height", "width", "c_in", "w", "bias", "residual", "y", "h_out", "w_out", "c_out", "kh", "kw",
               "stride", "padding", "w_dtype", "activation", "final"),
    # Each channel by itself; w in panels of 12 channels, k the taps x taps of its square kernel.
    "depthwise": ("x", "batch", "height", "width", "channels", "w", "bias", "residual", "y", "h_out", "w_out", "taps",
                  "stride", "padding", "w_dtype", "activation", "final"),
    # w flat (c_in, c_out, stride, stride); y is (batch, stride height, stride width, c_out).
    "conv_transpose2d": ("x", "batch", "height", "width", "c_in", "w", "bias", "y", "c_out", "stride", "activation"),
    # y[m, n] = a[m, k] . b[k, n], batch times, all activations; element (i, j) of b at i * b_k + j * b_n.
    "matmul": ("a", "a_batch", "lda", "b", "b_batch", "b_k", "b_n", "y", "y_batch", "ldy", "batch", "m", "n", "k"),
    # qkv[height, width, n_head, 3, d] -> y[height, width, n_head, d] within squares; bias[n_head, n, n], n = window^2, or 0;
    # outside[3 n_head d] stands for each position beyond the picture (0 only where there is none).
    "window_attention": ("qkv", "outside", "bias", "y", "batch", "height", "width", "window", "n_head", "d", "scale"),
    # mode 0: float32 -> int32 (truncate), 1: int32 -> float32
    "cast": ("mode", "x", "y", "count"),
    "rms_norm": ("x", "ldx", "w", "y", "m", "n", "eps"),
    # Head h, position i: x[h * x_head + i * x_row][d] turned by row *start + i (*start clamped to [0, start_max]) of the tables
    # cos and sin, d / 2 wide. pairs = 1: coordinates 2 j and 2 j + 1 belong together, 0: j and j + d / 2.
    "rope": ("x", "x_head", "x_row", "cos", "sin", "start", "start_max", "y", "y_head", "y_row", "n_head", "n", "d", "pairs"),
    # y[i][k] int32: where the k largest of x[i][n] are
    "top_k": ("x", "y", "m", "n", "k"),
    # y[i][j] = x[i * n + ids[i][j]], k ids a row
    "take": ("x", "ids", "y", "m", "n", "k"),
}
IDS = {name: index for index, name in enumerate(KERNELS)}

W_DTYPES = {"f32": 0, "f16": 1, "bf16": 2}
"""What kernels read in panels of `PANEL` rows."""
Q_DTYPES = {"q4_0": 4, "q4_1": 5, "q5_0": 6, "q5_1": 7, "q8_0": 8, "q2_k": 9, "q3_k": 10, "q4_k": 11, "q5_k": 12, "q6_k": 13}
"""What `linear_q` and `embedding_q` read in panels of `QPANEL` rows (kernels/quant.h)."""
SOURCE_DTYPES = {**W_DTYPES, "f64": 3, **Q_DTYPES, "q8_1": 14, "q8_k": 15}
"""What the exported `pack` reads."""
STORED_AS = {"f64": "f32", "q8_1": "q8_0", "q8_k": "f32"}
"""What becomes of the types that no kernel reads: q8_1 has sums that are not needed, q8_k is hardly ever in a file."""
PACK_KINDS = {"flat": 0, "panels": 1}
ACTIVATIONS = {"none": 0, "gelu": 1, "relu": 2, "silu": 3}
UNARY = {name: index for index, name in enumerate(
    "gelu relu silu exp log log10 sqrt square neg tanh sigmoid sin cos".split())}
BINARY = {name: index for index, name in enumerate("add sub mul div maximum minimum swiglu".split())}
REDUCE = {name: index for index, name in enumerate("sum mean max argmax log_sum_exp".split())}


Q_BLOCKS = {"q4_0": (32, 18), "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24), "q8_0": (32, 34), "q2_k": (256, 164),
            "q3_k": (256, 146), "q4_k": (256, 148), "q5_k": (256, 180), "q6_k": (256, 210)}
"""Numbers of one row that share a scale, and their bytes in a panel."""


def panel_bytes(n: int, k: int, dtype: str) -> int:
    """Bytes of a weight (n, k) in panels: ceil(n / PANEL) panels, each k rows of PANEL values; the rest is zero."""
    if dtype in Q_BLOCKS:
        block, n_bytes = Q_BLOCKS[dtype]
        return -(-n // QPANEL) * QPANEL * (k // block) * n_bytes
    return -(-n // PANEL) * PANEL * k * {"f32": 4, "f16": 2, "bf16": 2}[dtype]


def plain_panel_bytes(k: int, dtype: str) -> int:
    """Bytes of thread scratch that one panel of a quantised weight takes when it is made plain for many rows."""
    return k // 32 * (256 + 64 * (2 if dtype in ("q2_k", "q3_k", "q6_k") else 1))


def quantised_scratch_bytes(m: int, k: int) -> int:
    """Arena bytes that `linear_q` wants for m rows of quantised x: blocks of 32 are at most 80 bytes; one row needs none."""
    return m * (k // 32) * 80 if m > 1 else 0


def attention_scratch_bytes(n_kv_head: int, n_q: int, n_k: int, d: int) -> int:
    """Arena bytes that `attention` wants for packed keys and values; 0 where it reads them in place (few queries)."""
    if n_q < ATTENTION_PACK_MIN:
        return 0
    keys = -(-n_k // PANEL) * PANEL
    return n_kv_head * keys * (d + -(-d // 8) * 8) * 4


ATTENTION_PACK_MIN = 16
