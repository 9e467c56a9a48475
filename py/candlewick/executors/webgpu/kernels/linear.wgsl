// Everything that reads a weight matrix w (n, k): products with many rows (tiles), with at most four (floats and blocks, in words
// of 16 bytes; few for sizes that do not allow that), and rows of a table (rows).
// y = final(activation(norm(x) w^T + bias) + residual). Rows of x may overlap (a convolution along one axis): row i begins at
// X + i * LDX. Rows from the runtime scalar `count` on are zeros. GATED: the first half of the columns decides how much of the
// second passes, y = silu(first) * second, with n / 2 columns.

override M: u32; override N: u32; override K: u32;
override X: u32; override LDX: u32;
override Y: u32; override LDY: u32;
override BIAS: u32 = 0; override HAS_BIAS: bool = false;
override RESIDUAL: u32 = 0; override LDR: u32 = 0; override HAS_RESIDUAL: bool = false;
override ACTIVATION: u32 = 0; override FINAL: u32 = 0;
override GATED: bool = false;
// 0 none, 1 rms_norm, 2 layer_norm of the rows of x, for `floats` and `blocks`
override NORM: u32 = 0; override NORM_W: u32 = 0; override NORM_B: u32 = 0; override EPS: f32 = 0;
// 0 float32, 1 float16 and 2 bfloat16 (two in a word), 3 q4_0, 4 q4_1, 5 q5_0, 6 q5_1, 7 q8_0, 8 q4_k, 9 q6_k
override DTYPE: u32 = 0;
override SLOT: i32 = -1;
override FIXED: u32 = 0;
// `rows`: the table's rows FIRST .. FIRST + N lie in w, of TABLE
override FIRST: u32 = 0; override TABLE: u32 = 0;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(0) var<storage, read> x4: array<vec4f>;
@group(0) @binding(1) var<storage, read> w: array<u32>;
@group(0) @binding(1) var<storage, read> w4: array<vec4u>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read> residual: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> scalars: array<u32>;
@group(0) @binding(6) var<storage, read> ids: array<i32>;
@group(0) @binding(7) var<storage, read> norm_w: array<vec4f>;
@group(0) @binding(8) var<storage, read> norm_b: array<vec4f>;

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

/// Of 32 weights in a q4_k block at byte `at`.
fn scale_and_least(at: u32, g: u32) -> vec2f {
    if (g < 4) { return vec2f(f32(bits(at + 4 + g, 0, 63)), f32(bits(at + 8 + g, 0, 63))); }
    return vec2f(f32(bits(at + 8 + g, 0, 15) + 16 * bits(at + g, 6, 3)), f32(bits(at + 8 + g, 4, 15) + 16 * bits(at + 4 + g, 6, 3)));
}

fn weight_of_256(block: u32, j: u32) -> f32 {
    if (DTYPE == 8) {
        let at = block * 144;
        let g = j / 32;
        let d = vec2f(half(at), half(at + 2)) * scale_and_least(at, g);
        return f32(bits(at + 16 + j / 64 * 32 + j % 32, g % 2 * 4, 15)) * d.x - d.y;
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

// Four at a time, so that an epilogue is written out a few times only.
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

fn finish(row: u32, column: u32, sum: f32) {
    var v = sum;
    if (HAS_BIAS) { v += bias[BIAS + column]; }
    v = act(ACTIVATION, v);
    if (HAS_RESIDUAL) { v += residual[RESIDUAL + row * LDR + column]; }
    y[Y + row * LDY + column] = act(FINAL, v);
}

fn finish_gate(row: u32, column: u32, gate: f32, up: f32) { y[Y + row * LDY + column] = act(3u, gate) * up; }

fn counted() -> u32 {
    if (SLOT >= 0) { return min(scalars[u32(max(SLOT, 0))], M); }
    return M;
}

// A workgroup makes a tile of 64 rows x 64 columns, a thread 4 x 4 of it, 16 of k at a time through workgroup memory. A gated
// product has 32 columns of the first half in a tile, and the 32 that belong to them.
const TILE = 64u;
const DEEP = 16u;
alias Stored = f32;
var<workgroup> xs: array<f32, 1088>; // DEEP rows of TILE + 4: the pad keeps threads of a column in different banks
var<workgroup> ws: array<Stored, 1088>;

/// Weights k .. k + 4 of a row; those beyond K are zeros. k is a multiple of 4.
fn four_weights(row: u32, k: u32) -> vec4f {
    let i = row * K + k;
    if (DTYPE > 2) {
        let both = eight(i / 32, i % 16 / 4);
        return select(both[0], both[1], i % 32 >= 16);
    }
    if (DTYPE > 0 && K % 4 == 0) { return opened(vec4u(w[i / 2], w[i / 2 + 1], 0, 0))[0]; }
    var v = vec4f(0.0);
    for (var c = 0u; c < min(4u, K - k); c++) { v[c] = weight(row, k + c); }
    return v;
}

fn tile_column(tile: u32, i: u32) -> u32 {
    if (GATED) { return tile * 32 + i % 32 + i / 32 * (N / 2); }
    return tile * TILE + i;
}

@compute @workgroup_size(16, 16)
fn tiles(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_id) at: vec3u,
         @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let across = (N + TILE - 1) / TILE;
    let row0 = id / across * TILE;
    let tile = id % across;
    if (row0 >= M) { return; }
    let rows = counted();
    let line = lane / 4;
    let column = tile_column(tile, line);
    var sums: array<vec4f, 4>;
    for (var k0 = 0u; k0 < K; k0 += DEEP) {
        let k = k0 + lane % 4 * 4;
        var a = vec4f(0.0);
        var b = vec4f(0.0);
        if (k < K && row0 + line < rows) {
            let from_ = X + (row0 + line) * LDX + k;
            for (var c = 0u; c < min(4u, K - k); c++) { a[c] = x[from_ + c]; }
        }
        if (k < K && column < N) { b = four_weights(column, k); }
        for (var c = 0u; c < 4; c++) {
            xs[(lane % 4 * 4 + c) * 68 + line] = a[c];
            ws[(lane % 4 * 4 + c) * 68 + line] = Stored(b[c]);
        }
        workgroupBarrier();
        for (var k = 0u; k < DEEP; k++) {
            let at_k = k * 68 + at.x;
            let b = vec4f(f32(ws[at_k]), f32(ws[at_k + 16]), f32(ws[at_k + 32]), f32(ws[at_k + 48]));
            for (var r = 0u; r < 4; r++) { sums[r] += xs[k * 68 + at.y * 4 + r] * b; }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < 4; r++) {
        let row = row0 + at.y * 4 + r;
        if (row >= M) { continue; }
        if (GATED) {
            for (var c = 0u; c < 2; c++) {
                let column = tile * 32 + at.x + c * 16;
                if (column < N / 2) { finish_gate(row, column, sums[r][c], sums[r][c + 2]); }
            }
            continue;
        }
        let first = tile * TILE + at.x;
        var v = sums[r];
        for (var c = 0u; c < 4 && HAS_BIAS; c++) { v[c] += bias[BIAS + min(first + c * 16, N - 1)]; }
        v = act4(ACTIVATION, v);
        for (var c = 0u; c < 4 && HAS_RESIDUAL; c++) { v[c] += residual[RESIDUAL + row * LDR + min(first + c * 16, N - 1)]; }
        v = act4(FINAL, v);
        for (var c = 0u; c < 4; c++) {
            if (first + c * 16 < N) { y[Y + row * LDY + first + c * 16] = select(0.0, v[c], row < rows); }
        }
    }
}

// At most four rows: the weights are read once and are all that takes time. A team of LANES threads makes four columns of all
// rows; four of k and more at a time are in registers, so that x is read once for four columns.
override LANES: u32 = 16;
var<workgroup> parts: array<f32, 1040>; // 16 sums of 64 threads, + 1: threads of a team in different banks
var<workgroup> means: array<f32, 4>;
var<workgroup> scales: array<f32, 4>;

/// (team in the workgroup, member of the team)
fn whereabouts(lane: u32) -> vec2u { return vec2u(lane / LANES, lane % LANES); }

/// The sums of every member become known to its team.
fn share(lane: u32, mine: ptr<function, array<f32, 16>>) {
    for (var i = 0u; i < 16; i++) { parts[i * 65 + lane] = (*mine)[i]; }
    workgroupBarrier();
}

/// Sum number i of the whole team whose first lane this is.
fn team_sum(first: u32, i: u32, mine: ptr<function, array<f32, 16>>) -> f32 {
    var sum = 0.0;
    for (var j = first; j < first + LANES; j++) { sum += parts[i * 65 + j]; }
    return sum;
}

/// What the norm needs to know of each row, by all 64 threads.
fn look(lane: u32, rows: u32) {
    for (var r = 0u; r < M; r++) {
        var mean = 0.0;
        if (NORM == 2) {
            var sum = 0.0;
            for (var k = lane; k < K / 4; k += 64) { sum += dot(x4[(X + r * LDX) / 4 + k], vec4f(1.0)); }
            parts[lane] = sum;
            workgroupBarrier();
            for (var j = 0u; j < 64; j++) { mean += parts[j]; }
            mean /= f32(K);
            workgroupBarrier();
        }
        var squares = 0.0;
        for (var k = lane; k < K / 4; k += 64) {
            let d = x4[(X + r * LDX) / 4 + k] - mean;
            squares += dot(d, d);
        }
        parts[lane] = squares;
        workgroupBarrier();
        if (lane == 0) {
            var sum = 0.0;
            for (var j = 0u; j < 64; j++) { sum += parts[j]; }
            means[r] = mean;
            scales[r] = inverseSqrt(sum / f32(K) + EPS);
        }
        workgroupBarrier();
    }
}

/// Four of a row of x, normalised.
fn four(row: u32, k4: u32) -> vec4f {
    let v = x4[(X + row * LDX) / 4 + k4];
    if (NORM == 0) { return v; }
    let n = (v - means[row]) * scales[row] * norm_w[NORM_W / 4 + k4];
    if (NORM == 1) { return n; }
    return n + norm_b[NORM_B / 4 + k4];
}

fn team_column(first: u32, c: u32) -> u32 {
    if (GATED) { return min(first * 2 + c % 2, N / 2 - 1) + c / 2 * (N / 2); }
    return min(first * 4 + c, N - 1);
}

/// Sums of a team -> columns of y; sum 4 c + r is of column c and row r.
fn end(lane: u32, member: u32, first: u32, rows: u32, sums: ptr<function, array<f32, 16>>) {
    share(lane, sums);
    for (var i = member; i < select(16u, 8u, GATED); i += LANES) {
        let row = i % 4;
        if (row >= M) { continue; }
        let passes = select(0.0, 1.0, row < rows);
        let sum = team_sum(lane - member, i, sums) * passes;
        if (GATED) {
            let column = first * 2 + i / 4;
            if (column < N / 2) { finish_gate(row, column, sum, team_sum(lane - member, i + 8, sums)); }
            continue;
        }
        let column = first * 4 + i / 4;
        if (column < N) {
            if (row < rows) { finish(row, column, sum); } else { y[Y + row * LDY + column] = 0.0; }
        }
    }
}

/// Four, or eight, weights of 16 bytes.
fn opened(raw: vec4u) -> mat2x4f {
    if (DTYPE == 0) { return mat2x4f(bitcast<vec4f>(raw), vec4f(0.0)); }
    if (DTYPE == 1) {
        return mat2x4f(vec4f(unpack2x16float(raw.x), unpack2x16float(raw.y)), vec4f(unpack2x16float(raw.z), unpack2x16float(raw.w)));
    }
    let low = bitcast<vec4f>(raw << vec4u(16));
    let high = bitcast<vec4f>(raw & vec4u(0xffff0000u));
    return mat2x4f(vec4f(low.x, high.x, low.y, high.y), vec4f(low.z, high.z, low.w, high.w));
}

@compute @workgroup_size(64)
fn floats(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let me = whereabouts(lane);
    let first = id * (64 / LANES) + me.x;
    let rows = counted();
    if (NORM > 0) { look(lane, rows); }
    let wide = select(8u, 4u, DTYPE == 0);
    var sums: array<f32, 16>;
    for (var k = me.y * wide; k < K; k += LANES * wide) {
        var low: array<vec4f, 4>;
        var high: array<vec4f, 4>;
        for (var r = 0u; r < M; r++) {
            low[r] = four(r, k / 4);
            if (DTYPE > 0) { high[r] = four(r, k / 4 + 1); }
        }
        for (var c = 0u; c < 4; c++) {
            let v = opened(w4[(team_column(first, c) * K + k) / wide]);
            for (var r = 0u; r < M; r++) { sums[c * 4 + r] += dot(low[r], v[0]) + dot(high[r], v[1]); }
        }
    }
    end(lane, me.y, first, rows, &sums);
}

fn word(i: u32) -> u32 {
    let low = w[i / 4];
    if (i % 4 == 0) { return low; }
    return (low >> 16) | (w[i / 4 + 1] << 16); // blocks begin at even bytes
}
fn nibbles(v: u32, shift: u32) -> vec4f { return vec4f((vec4u(v) >> (vec4u(0, 8, 16, 24) + shift)) & vec4u(15)); }
fn fifths(v: u32, shift: u32) -> vec4f { return vec4f(((vec4u(v) >> (vec4u(0, 1, 2, 3) + shift)) & vec4u(1)) << vec4u(4)); }
fn bytes(v: u32) -> vec4f { return vec4f(bitcast<vec4i>(vec4u(v) << vec4u(24, 16, 8, 0)) >> vec4u(24)); }

/// Of the 32 weights number `unit`: 4 i .. 4 i + 4, and the same 16 further.
fn eight(unit: u32, i: u32) -> mat2x4f {
    switch (DTYPE) {
        case 3u: {
            let v = word(unit * 18 + 2 + 4 * i);
            return half(unit * 18) * mat2x4f(nibbles(v, 0u) - 8, nibbles(v, 4u) - 8);
        }
        case 4u: {
            let v = w[unit * 5 + 1 + i];
            let d = unpack2x16float(w[unit * 5]);
            return mat2x4f(d.x * nibbles(v, 0u) + d.y, d.x * nibbles(v, 4u) + d.y);
        }
        case 5u: {
            let v = word(unit * 22 + 6 + 4 * i);
            let h = word(unit * 22 + 2);
            return half(unit * 22) * mat2x4f(nibbles(v, 0u) + fifths(h, 4 * i) - 16, nibbles(v, 4u) + fifths(h, 16 + 4 * i) - 16);
        }
        case 6u: {
            let v = w[unit * 6 + 2 + i];
            let h = w[unit * 6 + 1];
            let d = unpack2x16float(w[unit * 6]);
            return mat2x4f(d.x * (nibbles(v, 0u) + fifths(h, 4 * i)) + d.y, d.x * (nibbles(v, 4u) + fifths(h, 16 + 4 * i)) + d.y);
        }
        case 7u: {
            let at = unit * 34 + 2 + 4 * i;
            return half(unit * 34) * mat2x4f(bytes(word(at)), bytes(word(at + 16)));
        }
        case 8u: {
            let at = unit / 8 * 36;
            let g = unit % 8;
            let d = unpack2x16float(w[at]) * scale_and_least(unit / 8 * 144, g);
            let q = at + 4 + g / 2 * 8 + i;
            return mat2x4f(d.x * nibbles(w[q], g % 2 * 4) - d.y, d.x * nibbles(w[q + 4], g % 2 * 4) - d.y);
        }
        default: {
            let at = unit / 8 * 210;
            let part = unit % 8 / 4;
            let quarter = unit % 4;
            let low = at + part * 64 + quarter % 2 * 32 + 4 * i;
            let high = at + 128 + part * 32 + 4 * i;
            let scale = at + 192 + part * 8 + quarter * 2;
            let d = half(at + 208);
            return mat2x4f(
                d * signed(scale) * (nibbles(word(low), quarter / 2 * 4) + thirds(word(high), quarter * 2) - 32),
                d * signed(scale + 1) * (nibbles(word(low + 16), quarter / 2 * 4) + thirds(word(high + 16), quarter * 2) - 32));
        }
    }
}
fn thirds(v: u32, shift: u32) -> vec4f { return vec4f(((vec4u(v) >> (vec4u(0, 8, 16, 24) + shift)) & vec4u(3)) << vec4u(4)); }

@compute @workgroup_size(64)
fn blocks(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let me = whereabouts(lane);
    let first = id * (64 / LANES) + me.x;
    let rows = counted();
    if (NORM > 0) { look(lane, rows); }
    var sums: array<f32, 16>;
    for (var unit = me.y; unit < K / 32; unit += LANES) {
        for (var i = 0u; i < 4; i++) {
            var low: array<vec4f, 4>;
            var high: array<vec4f, 4>;
            for (var r = 0u; r < M; r++) {
                low[r] = four(r, unit * 8 + i);
                high[r] = four(r, unit * 8 + i + 4);
            }
            for (var c = 0u; c < 4; c++) {
                let v = eight(team_column(first, c) * (K / 32) + unit, i);
                for (var r = 0u; r < M; r++) { sums[c * 4 + r] += dot(low[r], v[0]) + dot(high[r], v[1]); }
            }
        }
    }
    end(lane, me.y, first, rows, &sums);
}

// Any sizes: a workgroup makes 4 columns of one row, 16 threads a column.
@compute @workgroup_size(64)
fn few(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let across = (N + 3) / 4;
    let column = id % across * 4 + lane / 16;
    let row = id / across;
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
    if (lane % 16 == 0 && column < N && row < M) {
        if (row < rows) { finish(row, column, parts[lane]); } else { y[Y + row * LDY + column] = 0.0; }
    }
}

// Embedding: row i of y is row ids[X + i] of the table. Ids were checked before; one too large reads the last row.
@compute @workgroup_size(256)
fn rows(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let at = (group.x + counts.x * (group.y + counts.y * group.z)) * 256 + lane;
    if (at >= M * K) { return; }
    let row = u32(clamp(ids[X + at / K], 0, i32(TABLE - 1)));
    if (row >= FIRST && row < FIRST + N) { y[Y + at] = weight(row - FIRST, at % K); }
}
