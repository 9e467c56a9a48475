// Products of many rows with a weight matrix w (n, k): y = final(activation(x w^T + bias) + residual). Rows of x may overlap (a
// convolution along one axis): row i begins at X + i * LDX. With KH, x is a picture (batch, height, width, channels), row i is what
// output position i sees of it, and k runs over (KH, KW, C_IN). Rows from the runtime scalar `count` on are zeros. GATED: the first
// half of the columns decides how much of the second passes, y = silu(first) * second, with n / 2 columns.
//
// A thread makes 8 rows x 4 columns in registers: for each k it reads 3 vec4f of workgroup memory for 32 multiply-adds, 0.375 words
// each (4 x 4 took 0.5; 8 x 8 would take 0.25 and more registers than Intel's GPUs have for 16 lanes). 16 x 8 threads make a tile
// of 64 x 64: for each k 128 words come from memory for 4096 multiply-adds, 1/16 byte an operation, so that half of the rate of an
// RTX 4060 asks 470 GB/s of its second cache, of an M2 110, of an Iris Xe 65. Tiles of 16 k take 8.5 KiB of workgroup memory: three
// or four workgroups fit where there are 32 KiB, and one computes while another waits. Lowering takes smaller tiles where few rows or
// workgroups would leave the GPU idle, and lets SLICES of threads share the 16 k out and add up their sums at the end.

override M: u32; override N: u32; override K: u32;
override X: u32; override LDX: u32;
override Y: u32; override LDY: u32;
override BIAS: u32 = 0; override HAS_BIAS: bool = false;
override RESIDUAL: u32 = 0; override LDR: u32 = 0; override HAS_RESIDUAL: bool = false;
override ACTIVATION: u32 = 0; override FINAL: u32 = 0;
override GATED: bool = false;
override SLOT: i32 = -1;
override FIXED: u32 = 0;
// 0 float32, 1 float16 and 2 bfloat16 (two in a word); the form for blocks knows the rest
override DTYPE: u32 = 0;
override HEIGHT: u32 = 0; override WIDTH: u32 = 0; override C_IN: u32 = 1; override H_OUT: u32 = 1; override W_OUT: u32 = 1;
override KH: u32 = 0; override KW: u32 = 1; override STRIDE: u32 = 1; override PADDING: u32 = 0;
override ACROSS: u32 = 16; override DOWN: u32 = 8; override SLICES: u32 = 1;

@group(0) @binding(0) var<storage, read> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> w: array<u32>; // for blocks
@group(0) @binding(1) var<storage, read> w4: array<vec4u>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> scalars: array<u32>;

// Rows of 16 for each k, + 1: what 4 threads store lies in different banks.
const ROW = 17u;
alias Stored = vec4f;
var<workgroup> xs: array<vec4f, 272>;
var<workgroup> ws: array<Stored, 272>;

/// Weights k .. k + 4 of a row; those beyond K are zeros. k is a multiple of 4 below K.
fn four_weights(row: u32, k: u32) -> vec4f {
    let i = row * K + k;
    if (DTYPE == 0) {
        if (K % 4 == 0) { return bitcast<vec4f>(w4[i / 4]); }
        var v = vec4f(0.0);
        for (var c = 0u; c < min(4u, K - k); c++) { v[c] = bitcast<f32>(w4[(i + c) / 4][(i + c) % 4]); }
        return v;
    }
    if (K % 4 == 0) {
        let two = select(w4[i / 8].xy, w4[i / 8].zw, i % 8 == 4);
        if (DTYPE == 1) { return vec4f(unpack2x16float(two.x), unpack2x16float(two.y)); }
        return bitcast<vec4f>(vec4u(two.x << 16, two.x & 0xffff0000u, two.y << 16, two.y & 0xffff0000u));
    }
    var v = vec4f(0.0);
    for (var c = 0u; c < min(4u, K - k); c++) {
        let word = w4[(i + c) / 8][(i + c) / 2 % 4];
        let half = select(word & 0xffffu, word >> 16, (i + c) % 2 == 1);
        v[c] = select(bitcast<f32>(half << 16), unpack2x16float(half).x, DTYPE == 1);
    }
    return v;
}

/// Where number k of row `row` lies in the picture; -1 beside it.
fn place(row: u32, k: u32) -> i32 {
    let i = i32(row / W_OUT % H_OUT * STRIDE + k / (C_IN * KW)) - i32(PADDING);
    let j = i32(row % W_OUT * STRIDE + k / C_IN % KW) - i32(PADDING);
    if (i < 0 || j < 0 || i >= i32(HEIGHT) || j >= i32(WIDTH)) { return -1; }
    return i32(X + ((row / (W_OUT * H_OUT) * HEIGHT + u32(i)) * WIDTH + u32(j)) * C_IN + k % C_IN);
}

/// Numbers k .. k + 4 of a row of x; those beyond K are zeros. k is a multiple of 4 below K.
fn four(row: u32, k: u32) -> vec4f {
    if (KH == 0) {
        let i = X + row * LDX + k;
        if ((X | LDX | K) % 4 == 0) { return x[i / 4]; }
        var v = vec4f(0.0);
        for (var c = 0u; c < min(4u, K - k); c++) { v[c] = x[(i + c) / 4][(i + c) % 4]; }
        return v;
    }
    var v = vec4f(0.0);
    if ((X | C_IN) % 4 == 0) {
        let i = place(row, k);
        if (i >= 0) { v = x[i / 4]; }
        return v;
    }
    for (var c = 0u; c < min(4u, K - k); c++) {
        let i = place(row, k + c);
        if (i >= 0) { v[c] = x[i / 4][i % 4]; }
    }
    return v;
}

/// Column c of a tile. A thread of a gated product has two of the first half and the two of the second that belong to them.
fn tile_column(tile: u32, c: u32) -> u32 {
    if (GATED) { return min(tile * ACROSS * 2 + c / 4 * 2 + c % 2, N / 2 - 1) + c % 4 / 2 * (N / 2); }
    return min(tile * ACROSS * 4 + c, N - 1);
}

fn outer(a: vec4f, b: vec4f) -> mat4x4f { return mat4x4f(a.x * b, a.y * b, a.z * b, a.w * b); }

/// What all slices have made of these four sums.
fn whole(lane: u32, mine: vec4f) -> vec4f {
    if (SLICES == 1) { return mine; }
    xs[lane] = mine;
    workgroupBarrier();
    var sum = vec4f(0.0);
    for (var j = lane % (ACROSS * DOWN); j < ACROSS * DOWN * SLICES; j += ACROSS * DOWN) { sum += xs[j]; }
    workgroupBarrier();
    return sum;
}

fn erf4(v: vec4f) -> vec4f {
    let a = abs(v);
    let z = v * v;
    let near = -0.3761263890 + z * (0.1128379167 + z * (-0.0268661706 + z * (0.0052239776 - z * 0.00085483270)));
    let t = 1.0 / (1.0 + 0.3275911 * a);
    let far = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))));
    return select(sign(v) * (1.0 - far * exp(-min(z, vec4f(80.0)))), v * (1.1283791671 + z * near), a < vec4f(0.5));
}

fn act4(kind: u32, v: vec4f) -> vec4f {
    switch (kind) {
        case 1u: { return 0.5 * v * (1.0 + erf4(v * 0.70710678)); }
        case 2u: { return max(v, vec4f(0.0)); }
        case 3u: { return v / (1.0 + exp(min(-v, vec4f(88.0)))); }
        default: { return v; }
    }
}

@compute @workgroup_size(ACROSS, DOWN, SLICES)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_id) at: vec3u,
        @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let across = (N + ACROSS * 4 - 1) / (ACROSS * 4);
    let row0 = id / across * DOWN * 8;
    let tile = id % across;
    if (row0 >= M) { return; }
    var rows = M;
    if (SLOT >= 0) { rows = min(scalars[u32(max(SLOT, 0))], M); }
    var top: mat4x4f; // of rows 0 .. 4, and 4 .. 8, of this thread
    var low: mat4x4f;
    for (var k0 = 0u; k0 < select(0u, K, row0 < rows); k0 += 16) {
        // 4 x 4 numbers a thread: four of k of four rows, which lie side by side in a row of workgroup memory.
        for (var j = lane; j < (2 * DOWN + ACROSS) * 4; j += ACROSS * DOWN * SLICES) {
            let k = j % 4 * 4;
            let q = j / 4;
            var v = mat4x4f();
            if (q < 2 * DOWN) {
                let row = row0 + q * 4;
                if (k0 + k < K) {
                    v = transpose(mat4x4f(four(min(row, M - 1), k0 + k), four(min(row + 1, M - 1), k0 + k),
                                          four(min(row + 2, M - 1), k0 + k), four(min(row + 3, M - 1), k0 + k)));
                }
                xs[k * ROW + q] = v[0];
                xs[(k + 1) * ROW + q] = v[1];
                xs[(k + 2) * ROW + q] = v[2];
                xs[(k + 3) * ROW + q] = v[3];
            } else {
                let to = q - 2 * DOWN;
                if (k0 + k < K) {
                    v = transpose(mat4x4f(four_weights(tile_column(tile, to * 4), k0 + k),
                                          four_weights(tile_column(tile, to * 4 + 1), k0 + k),
                                          four_weights(tile_column(tile, to * 4 + 2), k0 + k),
                                          four_weights(tile_column(tile, to * 4 + 3), k0 + k)));
                }
                ws[k * ROW + to] = Stored(v[0]);
                ws[(k + 1) * ROW + to] = Stored(v[1]);
                ws[(k + 2) * ROW + to] = Stored(v[2]);
                ws[(k + 3) * ROW + to] = Stored(v[3]);
            }
        }
        workgroupBarrier();
        // Written out four at a time: not every compiler unrolls a loop, and some put a check into each round.
        for (var k = at.z * (16 / SLICES); k < (at.z + 1) * (16 / SLICES); k += 4) {
            let a = k * ROW + at.y * 2;
            let b = k * ROW + at.x;
            let b0 = vec4f(ws[b]);
            top += outer(xs[a], b0);
            low += outer(xs[a + 1], b0);
            let b1 = vec4f(ws[b + ROW]);
            top += outer(xs[a + ROW], b1);
            low += outer(xs[a + ROW + 1], b1);
            let b2 = vec4f(ws[b + 2 * ROW]);
            top += outer(xs[a + 2 * ROW], b2);
            low += outer(xs[a + 2 * ROW + 1], b2);
            let b3 = vec4f(ws[b + 3 * ROW]);
            top += outer(xs[a + 3 * ROW], b3);
            low += outer(xs[a + 3 * ROW + 1], b3);
        }
        workgroupBarrier();
    }
    var sums = array(whole(lane, top[0]), whole(lane, top[1]), whole(lane, top[2]), whole(lane, top[3]),
                     whole(lane, low[0]), whole(lane, low[1]), whole(lane, low[2]), whole(lane, low[3]));
    for (var r = at.z; r < 8; r += SLICES) {
        let row = row0 + at.y * 8 + r;
        if (row >= M) { break; }
        var v = sums[r];
        if (GATED) {
            let column = tile * ACROSS * 2 + at.x * 2;
            v = act4(3u, v.xyxy) * v.zwzw;
            for (var c = 0u; c < min(2u, N / 2 - min(column, N / 2)); c++) {
                y[Y + row * LDY + column + c] = select(0.0, v[c], row < rows);
            }
            continue;
        }
        let column = (tile * ACROSS + at.x) * 4;
        let width = min(4u, N - min(column, N));
        for (var c = 0u; c < width && HAS_BIAS; c++) { v[c] += bias[BIAS + column + c]; }
        v = act4(ACTIVATION, v);
        for (var c = 0u; c < width && HAS_RESIDUAL; c++) { v[c] += residual[RESIDUAL + row * LDR + column + c]; }
        v = act4(FINAL, v);
        for (var c = 0u; c < width; c++) { y[Y + row * LDY + column + c] = select(0.0, v[c], row < rows); }
    }
}
