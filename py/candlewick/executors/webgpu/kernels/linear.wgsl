// Everything that reads a weight matrix w (n, k): products with many rows (tiles), with few (few), and rows of a table (rows).
// y = final(activation(x w^T + bias) + residual). Rows of x may overlap (a convolution along one axis): row i begins at X + i * LDX.
// Rows from the runtime scalar `count` on are zeros.

override M: u32; override N: u32; override K: u32;
override X: u32; override LDX: u32;
override Y: u32; override LDY: u32;
override BIAS: u32 = 0; override HAS_BIAS: bool = false;
override RESIDUAL: u32 = 0; override LDR: u32 = 0; override HAS_RESIDUAL: bool = false;
override ACTIVATION: u32 = 0; override FINAL: u32 = 0;
// 0 float32, 1 float16 and 2 bfloat16 (two in a word), 3 q4_0, 4 q4_1, 5 q5_0, 6 q5_1, 7 q8_0, 8 q4_k, 9 q6_k
override DTYPE: u32 = 0;
override SLOT: i32 = -1;
override FIXED: u32 = 0;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<u32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> scalars: array<u32>;
@group(0) @binding(6) var<storage, read> ids: array<i32>;

// Blocks as they lie in a GGUF file (weights/quant.py): a whole number of blocks a row, bytes from the start of w.
fn byte(i: u32) -> u32 { return (w[i / 4] >> (i % 4 * 8)) & 0xffu; }
fn signed(i: u32) -> f32 { return f32(extractBits(bitcast<i32>(w[i / 4]), i % 4 * 8, 8u)); }
fn half(i: u32) -> f32 { return unpack2x16float(w[i / 4])[i / 2 % 2]; }
fn bits(i: u32, shift: u32, mask: u32) -> u32 { return (byte(i) >> shift) & mask; }

fn weight(row: u32, k: u32) -> f32 {
    let i = row * K + k;
    if (DTYPE == 0) { return bitcast<f32>(w[i]); }
    if (DTYPE == 1) { return unpack2x16float(w[i / 2])[i % 2]; }
    if (DTYPE == 2) { return bitcast<f32>(select(w[i / 2] << 16, w[i / 2] & 0xffff0000u, i % 2 == 1)); }
    if (DTYPE >= 8) { return weight_of_256(i / 256, i % 256); }
    let j = i % 32;
    let nibble = j / 16 * 4;
    let block = i / 32;
    switch (DTYPE) {
        case 3u: { return (f32(bits(block * 18 + 2 + j % 16, nibble, 15)) - 8) * half(block * 18); }
        case 4u: { return f32(bits(block * 20 + 4 + j % 16, nibble, 15)) * half(block * 20) + half(block * 20 + 2); }
        case 5u: {
            let q = bits(block * 22 + 6 + j % 16, nibble, 15) + 16 * bits(block * 22 + 2 + j / 8, j % 8, 1);
            return (f32(q) - 16) * half(block * 22);
        }
        case 6u: {
            let q = bits(block * 24 + 8 + j % 16, nibble, 15) + 16 * bits(block * 24 + 4 + j / 8, j % 8, 1);
            return f32(q) * half(block * 24) + half(block * 24 + 2);
        }
        default: { return signed(block * 34 + 2 + j) * half(block * 34); }
    }
}

fn weight_of_256(block: u32, j: u32) -> f32 {
    if (DTYPE == 8) {
        let at = block * 144;
        let g = j / 32;
        var scale = bits(at + 4 + g, 0, 63);
        var least = bits(at + 8 + g, 0, 63);
        if (g >= 4) {
            scale = bits(at + 8 + g, 0, 15) + 16 * bits(at + g, 6, 3);
            least = bits(at + 8 + g, 4, 15) + 16 * bits(at + 4 + g, 6, 3);
        }
        let q = bits(at + 16 + j / 64 * 32 + j % 32, g % 2 * 4, 15);
        return f32(q) * (half(at) * f32(scale)) - half(at + 2) * f32(least);
    }
    let at = block * 210;
    let part = j / 128;
    let low = bits(at + part * 64 + j % 64, j % 128 / 64 * 4, 15);
    let high = bits(at + 128 + part * 32 + j % 32, j % 128 / 32 * 2, 3);
    return (f32(low + 16 * high) - 32) * (half(at + 208) * signed(at + 192 + j / 16));
}

// erf by Abramowitz and Stegun 7.1.26 would be 1.5e-7; its error near 0 is absolute, so small arguments take the series.
fn erf(v: f32) -> f32 {
    let a = abs(v);
    if (a < 0.5) {
        let z = v * v;
        let p = -0.3761263890 + z * (0.1128379167 + z * (-0.0268661706 + z * (0.0052239776 - z * 0.00085483270)));
        return v * (1.1283791671 + z * p);
    }
    let t = 1.0 / (1.0 + 0.3275911 * a);
    let p = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return sign(v) * (1.0 - p * exp(-min(a * a, 80.0)));
}

fn act(kind: u32, v: f32) -> f32 {
    switch (kind) {
        case 1u: { return 0.5 * v * (1.0 + erf(v * 0.70710678)); }
        case 2u: { return max(v, 0.0); }
        case 3u: { return v / (1.0 + exp(min(-v, 88.0))); }
        default: { return v; }
    }
}

fn finish(row: u32, column: u32, sum: f32) {
    var v = sum;
    if (HAS_BIAS) { v += bias[BIAS + column]; }
    v = act(ACTIVATION, v);
    if (HAS_RESIDUAL) { v += residual[RESIDUAL + row * LDR + column]; }
    y[Y + row * LDY + column] = act(FINAL, v);
}

fn counted() -> u32 {
    if (SLOT >= 0) { return min(scalars[u32(max(SLOT, 0))], M); }
    return M;
}

// A workgroup makes a tile of 64 rows x 64 columns, a thread 4 x 4 of it, 16 of k at a time through workgroup memory.
const TILE = 64u;
const DEEP = 16u;
var<workgroup> xs: array<f32, 1088>; // DEEP rows of TILE + 4: the pad keeps threads of a column in different banks
var<workgroup> ws: array<f32, 1088>;

@compute @workgroup_size(16, 16)
fn tiles(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_id) at: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row0 = group.y * TILE;
    let column0 = group.x * TILE;
    let rows = counted();
    var sums: array<vec4f, 4>;
    for (var k0 = 0u; k0 < K; k0 += DEEP) {
        for (var j = lane; j < TILE * DEEP; j += 256) {
            let k = k0 + j % DEEP;
            let line = j / DEEP;
            var a = 0.0;
            var b = 0.0;
            if (k < K && row0 + line < rows) { a = x[X + (row0 + line) * LDX + k]; }
            if (k < K && column0 + line < N) { b = weight(column0 + line, k); }
            xs[j % DEEP * 68 + line] = a;
            ws[j % DEEP * 68 + line] = b;
        }
        workgroupBarrier();
        for (var k = 0u; k < DEEP; k++) {
            let b = vec4f(ws[k * 68 + at.x], ws[k * 68 + at.x + 16], ws[k * 68 + at.x + 32], ws[k * 68 + at.x + 48]);
            for (var r = 0u; r < 4; r++) { sums[r] += xs[k * 68 + at.y * 4 + r] * b; }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < 4; r++) {
        let row = row0 + at.y * 4 + r;
        for (var c = 0u; c < 4; c++) {
            let column = column0 + at.x + c * 16;
            if (row < M && column < N) {
                if (row < rows) { finish(row, column, sums[r][c]); } else { y[Y + row * LDY + column] = 0.0; }
            }
        }
    }
}

// Few rows: a workgroup makes 4 columns of one row, 16 threads a column.
var<workgroup> parts: array<f32, 64>;

@compute @workgroup_size(64)
fn few(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let column = (group.x + group.y * counts.x) * 4 + lane / 16;
    let row = group.z;
    let rows = counted();
    var sum = 0.0;
    if (column < N && row < rows) {
        for (var k = lane % 16; k < K; k += 16) { sum += x[X + row * LDX + k] * weight(column, k); }
    }
    parts[lane] = sum;
    workgroupBarrier();
    for (var half = 8u; half > 0; half /= 2) {
        if (lane % 16 < half) { parts[lane] += parts[lane + half]; }
        workgroupBarrier();
    }
    if (lane % 16 == 0 && column < N) {
        if (row < rows) { finish(row, column, parts[lane]); } else { y[Y + row * LDY + column] = 0.0; }
    }
}

// Embedding: row i of y is row ids[X + i] of w. Ids were checked before; one too large reads the last row.
@compute @workgroup_size(256)
fn rows(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let at = (group.x + group.y * counts.x) * 256 + lane;
    if (at < M * K) { y[Y + at] = weight(u32(clamp(ids[X + at / K], 0, i32(N - 1))), at % K); }
}
