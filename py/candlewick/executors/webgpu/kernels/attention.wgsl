// y = softmax(scale q k^T + bias) v without an (n, m) buffer: online softmax over blocks of keys (Dao et al. 2022).
// GROUP query heads share a key head: its rows are the queries of all of them, row = query * GROUP + head in the group.
// causal: query i sees keys <= start + i. D is at most 128. For at most 8 rows there is attention_few.wgsl.
//
// A workgroup answers 32 rows, 32 keys at a time. A thread makes the scores of 4 rows x 4 keys in registers, from 16 numbers of each
// at a time in workgroup memory; then, with the others' largest, their shares, which pass through workgroup memory; then 8 rows x 4
// numbers of y, with values straight from memory, 32 multiply-adds for each vec4f. For 32 keys 3 x 32 D words come from memory (rows
// again each time: all of them take more than 16 KiB where D is 128) for 64 x 32 D multiply-adds: 0.1 byte an operation.

override BATCH: u32; override HEADS: u32; override GROUP: u32; override NQ: u32; override NK: u32; override D: u32;
override Q: u32; override Q_BATCH: u32; override Q_HEAD: u32; override Q_ROW: u32;
override K: u32; override K_BATCH: u32; override K_HEAD: u32; override K_ROW: u32;
override V: u32; override V_BATCH: u32; override V_HEAD: u32; override V_ROW: u32;
override Y: u32; override Y_BATCH: u32; override Y_HEAD: u32; override Y_ROW: u32;
override BIAS: u32 = 0; override BIAS_BATCH: u32 = 0; override BIAS_HEAD: u32 = 0; override BIAS_ROW: u32 = 0;
override HAS_BIAS: bool = false;
override CAUSAL: bool = false;
override SCALE: f32;
override SLOT: i32 = -1; override FIXED: u32 = 0;

@group(0) @binding(0) var<storage, read> q: array<vec4f>;
@group(0) @binding(1) var<storage, read> k: array<vec4f>;
@group(0) @binding(2) var<storage, read> v: array<vec4f>;
@group(0) @binding(3) var<storage, read> bias: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read> scalars: array<u32>;

const ROW = 9u; // 32 of a kind, + 4: what threads store lies in different banks
const KEYS = 144u;
var<workgroup> staged: array<vec4f, 288>; // 16 numbers of 32 rows, and from KEYS on of 32 keys
var<workgroup> shares: array<vec4f, 288>; // of 32 keys, for 32 rows
var<workgroup> parts: array<vec4f, 64>;
var<workgroup> fades: array<vec4f, 8>;

/// Numbers c .. c + 4 of a query, a key, a value; zeros beyond D.
fn q4(batch: u32, kv: u32, row: u32, c: u32) -> vec4f {
    let at = Q + row_at(batch, kv, min(row, NQ * GROUP - 1), vec3u(Q_BATCH, Q_HEAD, Q_ROW));
    if ((Q | Q_BATCH | Q_HEAD | Q_ROW | D) % 4 == 0) { return q[(at + c) / 4]; }
    var found = vec4f(0.0);
    for (var j = 0u; j < min(4u, D - c); j++) { found[j] = q[(at + c + j) / 4][(at + c + j) % 4]; }
    return found;
}

fn k4(from_: u32, key: u32, c: u32) -> vec4f {
    let at = from_ + min(key, NK - 1) * K_ROW;
    if ((K | K_BATCH | K_HEAD | K_ROW | D) % 4 == 0) { return k[(at + c) / 4]; }
    var found = vec4f(0.0);
    for (var j = 0u; j < min(4u, D - c); j++) { found[j] = k[(at + c + j) / 4][(at + c + j) % 4]; }
    return found;
}

fn v4(at: u32, c: u32) -> vec4f {
    if (c >= D) { return vec4f(0.0); }
    if ((V | V_BATCH | V_HEAD | V_ROW | D) % 4 == 0) { return v[(at + c) / 4]; }
    var found = vec4f(0.0);
    for (var j = 0u; j < min(4u, D - c); j++) { found[j] = v[(at + c + j) / 4][(at + c + j) % 4]; }
    return found;
}

/// Where row `row` of a head of keys begins in the queries, the bias and y, by their strides.
fn row_at(batch: u32, kv: u32, row: u32, strides: vec3u) -> u32 {
    return batch * strides.x + (kv * GROUP + row % GROUP) * strides.y + row / GROUP * strides.z;
}

fn outer(a: vec4f, b: vec4f) -> mat4x4f { return mat4x4f(a.x * b, a.y * b, a.z * b, a.w * b); }

fn scaled(m: mat4x4f, a: vec4f) -> mat4x4f { return mat4x4f(m[0] * a.x, m[1] * a.y, m[2] * a.z, m[3] * a.w); }

@compute @workgroup_size(8, 8)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_id) at: vec3u,
        @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let rows = NQ * GROUP;
    let tiles = (rows + 31) / 32;
    let kv = id / tiles % (HEADS / GROUP);
    let batch = id / (tiles * (HEADS / GROUP));
    if (batch >= BATCH) { return; }
    let row0 = id % tiles * 32;
    var start = FIXED;
    if (SLOT >= 0) { start = scalars[u32(max(SLOT, 0))]; }
    let k_at = K + batch * K_BATCH + kv * K_HEAD;
    let v_at = V + batch * V_BATCH + kv * V_HEAD;
    var end = NK;
    if (CAUSAL) { end = min(NK, start + min(row0 + 31, rows - 1) / GROUP + 1); }
    var bias_at: array<u32, 4>;
    for (var r = 0u; r < 4 && HAS_BIAS; r++) {
        bias_at[r] = BIAS + row_at(batch, kv, min(row0 + at.y * 4 + r, rows - 1), vec3u(BIAS_BATCH, BIAS_HEAD, BIAS_ROW));
    }
    let octet = lane / 16; // of rows, and the numbers of y that this thread makes
    let c0 = lane % 16 * 4;
    var largest = vec4f(-3.0e38);
    var total = vec4f(0.0);
    var top0 = mat4x4f(); // rows 0 .. 4 of the octet, and 4 .. 8; numbers from c0 and from 64 + c0
    var low0 = mat4x4f();
    var top1 = mat4x4f();
    var low1 = mat4x4f();
    for (var first = 0u; first < end; first += 32) {
        var made = mat4x4f(); // scores of key first + 4 at.x + c, for rows row0 + 4 at.y ...
        for (var d0 = 0u; d0 < D; d0 += 16) {
            let c = lane % 4 * 4;
            var numbers = mat4x4f();
            if (d0 + c < D && lane < 32) {
                let row = row0 + lane / 4 * 4;
                numbers = mat4x4f(q4(batch, kv, row, d0 + c), q4(batch, kv, row + 1, d0 + c),
                                  q4(batch, kv, row + 2, d0 + c), q4(batch, kv, row + 3, d0 + c));
            } else if (d0 + c < D) {
                let key = first + (lane - 32) / 4 * 4;
                numbers = mat4x4f(k4(k_at, key, d0 + c), k4(k_at, key + 1, d0 + c),
                                  k4(k_at, key + 2, d0 + c), k4(k_at, key + 3, d0 + c));
            }
            numbers = transpose(numbers);
            let to = lane / 32 * KEYS + c * ROW + lane / 4 % 8;
            staged[to] = numbers[0];
            staged[to + ROW] = numbers[1];
            staged[to + 2 * ROW] = numbers[2];
            staged[to + 3 * ROW] = numbers[3];
            workgroupBarrier();
            // Written out four at a time: not every compiler unrolls a loop, and some put a check into each round.
            for (var d = 0u; d < 16; d += 4) {
                let a = d * ROW + at.y;
                let b = KEYS + d * ROW + at.x;
                made += outer(staged[b], staged[a]);
                made += outer(staged[b + ROW], staged[a + ROW]);
                made += outer(staged[b + 2 * ROW], staged[a + 2 * ROW]);
                made += outer(staged[b + 3 * ROW], staged[a + 3 * ROW]);
            }
            workgroupBarrier();
        }
        var scores = array(made[0], made[1], made[2], made[3]);
        var top = largest;
        for (var c = 0u; c < 4; c++) {
            let key = first + at.x * 4 + c;
            var score = scores[c] * SCALE;
            for (var r = 0u; r < 4; r++) {
                if (HAS_BIAS) { score[r] += bias[bias_at[r] + min(key, NK - 1)]; }
                let query = min(row0 + at.y * 4 + r, rows - 1) / GROUP;
                if (key >= end || (CAUSAL && key > start + query)) { score[r] = -3.0e38; }
            }
            scores[c] = score;
            top = max(top, score);
        }
        parts[lane] = top;
        workgroupBarrier();
        for (var j = at.y * 8; j < at.y * 8 + 8; j++) { top = max(top, parts[j]); }
        let fade = exp(largest - top);
        largest = top;
        total *= fade;
        for (var c = 0u; c < 4; c++) {
            let share = exp(scores[c] - top);
            total += share;
            shares[(at.x * 4 + c) * ROW + at.y] = share;
        }
        if (at.x == 0) { fades[at.y] = fade; }
        workgroupBarrier();
        let f0 = fades[octet * 2];
        let f1 = fades[octet * 2 + 1];
        top0 = scaled(top0, f0);
        low0 = scaled(low0, f1);
        if (D > 64) {
            top1 = scaled(top1, f0);
            low1 = scaled(low1, f1);
        }
        for (var j = 0u; j < min(32u, end - first); j++) {
            let a0 = shares[j * ROW + octet * 2];
            let a1 = shares[j * ROW + octet * 2 + 1];
            let value = v4(v_at + (first + j) * V_ROW, c0);
            top0 += outer(a0, value);
            low0 += outer(a1, value);
            if (D > 64) {
                let more = v4(v_at + (first + j) * V_ROW, 64 + c0);
                top1 += outer(a0, more);
                low1 += outer(a1, more);
            }
        }
    }
    parts[lane] = total;
    workgroupBarrier();
    var t0 = vec4f(0.0);
    var t1 = vec4f(0.0);
    for (var j = octet * 16; j < octet * 16 + 8; j++) {
        t0 += parts[j];
        t1 += parts[j + 8];
    }
    var sums = array(scaled(top0, 1.0 / t0), scaled(low0, 1.0 / t1), scaled(top1, 1.0 / t0), scaled(low1, 1.0 / t1));
    for (var r = 0u; r < 8; r++) {
        let row = row0 + octet * 8 + r;
        if (row >= rows) { break; }
        let to = Y + row_at(batch, kv, row, vec3u(Y_BATCH, Y_HEAD, Y_ROW));
        for (var c = 0u; c < min(4u, D - min(c0, D)); c++) { y[to + c0 + c] = sums[r / 4][r % 4][c]; }
        for (var c = 0u; c < min(4u, D - min(64 + c0, D)); c++) { y[to + 64 + c0 + c] = sums[2 + r / 4][r % 4][c]; }
    }
}
