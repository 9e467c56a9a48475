// What reads a weight matrix w (n, k) for few rows: products of at most four rows (floats and blocks, in words of 16 bytes; few for
// sizes that do not allow that), and rows of a table (rows). Those of many rows are in tiles.wgsl.
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

// ---- blocks as they lie in a GGUF file (weights/quant.py): a whole number of them a row, bytes from the start of w

fn byte(i: u32) -> u32 { return (w[i / 4] >> (i % 4 * 8)) & 0xffu; }
fn signed(i: u32) -> f32 { return f32(extractBits(bitcast<i32>(w[i / 4]), i % 4 * 8, 8u)); }
fn half(i: u32) -> f32 { return unpack2x16float(w[i / 4])[i / 2 % 2]; }
fn word(i: u32) -> u32 {
    let low = w[i / 4];
    if (i % 4 == 0) { return low; }
    return (low >> 16) | (w[i / 4 + 1] << 16); // blocks begin at even bytes
}
fn nibbles(v: u32, shift: u32) -> vec4f { return vec4f((vec4u(v) >> (vec4u(0, 8, 16, 24) + shift)) & vec4u(15)); }
fn fifths(v: u32, shift: u32) -> vec4f { return vec4f(((vec4u(v) >> (vec4u(0, 1, 2, 3) + shift)) & vec4u(1)) << vec4u(4)); }
fn thirds(v: u32, shift: u32) -> vec4f { return vec4f(((vec4u(v) >> (vec4u(0, 8, 16, 24) + shift)) & vec4u(3)) << vec4u(4)); }
fn bytes(v: u32) -> vec4f { return vec4f(bitcast<vec4i>(vec4u(v) << vec4u(24, 16, 8, 0)) >> vec4u(24)); }

/// Of 32 weights, number g of a q4_k block at byte `at`; without a branch, so that two that ask for the same are one.
fn scale_and_least(at: u32, g: u32) -> vec2f {
    let a = byte(at + g);
    let b = byte(at + 4 + g);
    let c = byte(at + 8 + g);
    return vec2f(select(vec2u((c & 15) | ((a >> 6) << 4), (c >> 4) | ((b >> 6) << 4)), vec2u(b, c) & vec2u(63), g < 4));
}

/// Of the 32 weights number `unit`: 4 i .. 4 i + 4 of the first 16 (part 0) or of the others (part 1).
fn quad(unit: u32, i: u32, part: u32) -> vec4f {
    switch (DTYPE) {
        case 3u: { return half(unit * 18) * (nibbles(word(unit * 18 + 2 + 4 * i), 4 * part) - 8); }
        case 4u: {
            let d = unpack2x16float(w[unit * 5]);
            return d.x * nibbles(w[unit * 5 + 1 + i], 4 * part) + d.y;
        }
        case 5u: {
            let high = fifths(word(unit * 22 + 2), 16 * part + 4 * i);
            return half(unit * 22) * (nibbles(word(unit * 22 + 6 + 4 * i), 4 * part) + high - 16);
        }
        case 6u: {
            let d = unpack2x16float(w[unit * 6]);
            return d.x * (nibbles(w[unit * 6 + 2 + i], 4 * part) + fifths(w[unit * 6 + 1], 16 * part + 4 * i)) + d.y;
        }
        case 7u: { return half(unit * 34) * bytes(word(unit * 34 + 2 + 4 * i + 16 * part)); }
        case 8u: {
            let at = unit / 8 * 36;
            let g = unit % 8;
            let d = unpack2x16float(w[at]) * scale_and_least(unit / 8 * 144, g);
            return d.x * nibbles(w[at + 4 + g / 2 * 8 + i + 4 * part], g % 2 * 4) - d.y;
        }
        default: {
            let at = unit / 8 * 210;
            let number = unit % 8 / 4;
            let quarter = unit % 4;
            let low = word(at + number * 64 + quarter % 2 * 32 + 4 * i + 16 * part);
            let high = word(at + 128 + number * 32 + 4 * i + 16 * part);
            let d = half(at + 208) * signed(at + 192 + number * 8 + quarter * 2 + part);
            return d * (nibbles(low, quarter / 2 * 4) + thirds(high, quarter * 2) - 32);
        }
    }
}

// ---- one weight, and what becomes of a sum

fn weight(row: u32, k: u32) -> f32 {
    let i = row * K + k;
    if (DTYPE == 0) { return bitcast<f32>(w[i]); }
    if (DTYPE == 1) { return unpack2x16float(w[i / 2])[i % 2]; }
    if (DTYPE == 2) { return bitcast<f32>(select(w[i / 2] << 16, w[i / 2] & 0xffff0000u, i % 2 == 1)); }
    return quad(i / 32, i % 16 / 4, i % 32 / 16)[i % 4];
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

fn finish_gate(row: u32, column: u32, gate: f32, up: f32) { y[Y + row * LDY + column] = act(3u, gate) * up; }

fn counted() -> u32 {
    if (SLOT >= 0) { return min(scalars[u32(max(SLOT, 0))], M); }
    return M;
}

// ---- few rows

// At most four rows: the weights are read once and are all that takes time. A team of threads makes four columns of all rows; four
// of k and more at a time are in registers, so that x is read once for four columns. A workgroup makes those of TEAMS teams, also
// where fewer teams are in it (subgroups, whose size is the driver's choice).
override TEAMS: u32 = 4;
var<workgroup> parts: array<f32, 1040>; // 16 sums of 64 threads, + 1: threads of a team in different banks
var<workgroup> means: array<f32, 4>;
var<workgroup> scales: array<f32, 4>;

/// (team in the workgroup, member of the team, members)
fn whereabouts(lane: u32) -> vec3u { return vec3u(lane / (64 / TEAMS), lane % (64 / TEAMS), 64 / TEAMS); }

/// How many teams the workgroup has.
fn there() -> u32 { return TEAMS; }

/// The sums of every member become known to its team.
fn share(lane: u32, mine: ptr<function, array<f32, 16>>) {
    for (var i = 0u; i < 16; i++) { parts[i * 65 + lane] = (*mine)[i]; }
    workgroupBarrier();
}

/// Sum number i of the whole team whose first lane this is.
fn team_sum(first: u32, i: u32, mine: ptr<function, array<f32, 16>>) -> f32 {
    var sum = 0.0;
    for (var j = first; j < first + 64 / TEAMS; j++) { sum += parts[i * 65 + j]; }
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
fn end(lane: u32, member: u32, size: u32, first: u32, rows: u32, sums: ptr<function, array<f32, 16>>) {
    share(lane, sums);
    for (var i = member; i < select(16u, 8u, GATED); i += size) {
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
    let rows = counted();
    if (NORM > 0) { look(lane, rows); }
    let wide = select(8u, 4u, DTYPE == 0);
    for (var team = 0u; team < TEAMS; team += there()) {
        let idle = team + me.x >= TEAMS;
        let first = select(id * TEAMS + team + me.x, N, idle);
        let deep = select(K, 0u, idle);
        var sums = array<f32, 16>();
        for (var k = me.y * wide; k < deep; k += me.z * wide) {
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
        end(lane, me.y, me.z, first, rows, &sums);
    }
}

@compute @workgroup_size(64)
fn blocks(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let me = whereabouts(lane);
    let rows = counted();
    if (NORM > 0) { look(lane, rows); }
    for (var team = 0u; team < TEAMS; team += there()) {
        let idle = team + me.x >= TEAMS;
        let first = select(id * TEAMS + team + me.x, N, idle);
        let deep = select(K, 0u, idle);
        var sums = array<f32, 16>();
        for (var unit = me.y; unit < deep / 32; unit += me.z) {
            for (var i = 0u; i < 4; i++) {
                var low: array<vec4f, 4>;
                var high: array<vec4f, 4>;
                for (var r = 0u; r < M; r++) {
                    low[r] = four(r, unit * 8 + i);
                    high[r] = four(r, unit * 8 + i + 4);
                }
                for (var c = 0u; c < 4; c++) {
                    let place = team_column(first, c) * (K / 32) + unit;
                    let v = mat2x4f(quad(place, i, 0u), quad(place, i, 1u));
                    for (var r = 0u; r < M; r++) { sums[c * 4 + r] += dot(low[r], v[0]) + dot(high[r], v[1]); }
                }
            }
        }
        end(lane, me.y, me.z, first, rows, &sums);
    }
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
