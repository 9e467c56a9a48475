// Rows of heads (batch, heads, rows, d) go to their places: queries turned by their positions into y, keys and values into caches,
// the keys turned too. Rotary embedding by rows start + i of cos and sin (capacity, d / 2); PAIRS: neighbours turn together, else
// halves. A thread has two numbers.

override BATCH: u32; override ROWS: u32; override D: u32;
override Q_HEADS: u32 = 0; override Q_TURN: bool = false;
override Q: u32 = 0; override Q_BATCH: u32 = 0; override Q_HEAD: u32 = 0; override Q_ROW: u32 = 0;
override Q_TO: u32 = 0; override Q_TO_BATCH: u32 = 0; override Q_TO_HEAD: u32 = 0; override Q_TO_ROW: u32 = 0;
override K_HEADS: u32 = 0; override K_TURN: bool = false;
override K: u32 = 0; override K_BATCH: u32 = 0; override K_HEAD: u32 = 0; override K_ROW: u32 = 0;
override K_TO: u32 = 0; override K_TO_BATCH: u32 = 0; override K_TO_HEAD: u32 = 0; override K_TO_ROW: u32 = 0;
override V_HEADS: u32 = 0; override V_TURN: bool = false;
override V: u32 = 0; override V_BATCH: u32 = 0; override V_HEAD: u32 = 0; override V_ROW: u32 = 0;
override V_TO: u32 = 0; override V_TO_BATCH: u32 = 0; override V_TO_HEAD: u32 = 0; override V_TO_ROW: u32 = 0;
override COS: u32 = 0; override SIN: u32 = 0; override CAPACITY: u32 = 1;
override PAIRS: bool = false;
override SLOT: i32 = -1; override FIXED: u32 = 0;

@group(0) @binding(0) var<storage, read> x: array<f32>; // of queries and keys
@group(0) @binding(1) var<storage, read> x_of_values: array<f32>;
@group(0) @binding(2) var<storage, read> cosines: array<f32>;
@group(0) @binding(3) var<storage, read> sines: array<f32>;
@group(0) @binding(4) var<storage, read_write> y: array<f32>;
@group(0) @binding(5) var<storage, read_write> keys: array<f32>;
@group(0) @binding(6) var<storage, read_write> values: array<f32>;
@group(0) @binding(7) var<storage, read> scalars: array<u32>;

fn position() -> u32 {
    if (SLOT >= 0) { return scalars[u32(max(SLOT, 0))]; }
    return FIXED;
}

/// (batch, head, row, pair)
fn axes(i: u32, heads: u32) -> vec4u {
    let n = (D + 1) / 2;
    return vec4u(i / (n * ROWS * heads), i / (n * ROWS) % heads, i / n % ROWS, i % n);
}

fn pair(j: u32, turn: bool) -> vec2u {
    if (turn && !PAIRS) { return vec2u(j, j + D / 2); }
    return vec2u(2 * j, 2 * j + 1);
}

fn turned(v: vec2f, row: u32, j: u32) -> vec2f {
    let at = min(position() + row, CAPACITY - 1) * (D / 2) + j;
    let c = cosines[COS + at];
    let s = sines[SIN + at];
    return vec2f(v.x * c - v.y * s, v.y * c + v.x * s);
}

fn query(i: u32) {
    let a = axes(i, Q_HEADS);
    let p = pair(a.w, true);
    let from_ = Q + a.x * Q_BATCH + a.y * Q_HEAD + a.z * Q_ROW;
    let to = Q_TO + a.x * Q_TO_BATCH + a.y * Q_TO_HEAD + a.z * Q_TO_ROW;
    let v = turned(vec2f(x[from_ + p.x], x[from_ + p.y]), a.z, a.w);
    y[to + p.x] = v.x;
    y[to + p.y] = v.y;
}

fn key(i: u32) {
    let a = axes(i, K_HEADS);
    let p = pair(a.w, K_TURN);
    let from_ = K + a.x * K_BATCH + a.y * K_HEAD + a.z * K_ROW;
    let to = K_TO + a.x * K_TO_BATCH + a.y * K_TO_HEAD + (a.z + position()) * K_TO_ROW;
    var v = vec2f(x[from_ + p.x], x[from_ + min(p.y, D - 1)]);
    if (K_TURN) { v = turned(v, a.z, a.w); }
    keys[to + p.x] = v.x;
    if (p.y < D) { keys[to + p.y] = v.y; }
}

fn value(i: u32) {
    let a = axes(i, V_HEADS);
    let p = vec2u(2 * a.w, 2 * a.w + 1);
    let from_ = V + a.x * V_BATCH + a.y * V_HEAD + a.z * V_ROW;
    let to = V_TO + a.x * V_TO_BATCH + a.y * V_TO_HEAD + (a.z + position()) * V_TO_ROW;
    values[to + p.x] = x_of_values[from_ + p.x];
    if (p.y < D) { values[to + p.y] = x_of_values[from_ + p.y]; }
}

@compute @workgroup_size(64)
fn turn(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + counts.x * (group.y + counts.y * group.z)) * 64 + lane;
    if (i < BATCH * Q_HEADS * ROWS * ((D + 1) / 2)) { query(i); }
}

@compute @workgroup_size(64)
fn store(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + counts.x * (group.y + counts.y * group.z)) * 64 + lane;
    let n = BATCH * K_HEADS * ROWS * ((D + 1) / 2);
    if (i < n) {
        key(i);
    } else if (i < 2 * n) {
        value(i - n);
    }
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + counts.x * (group.y + counts.y * group.z)) * 64 + lane;
    let n = BATCH * K_HEADS * ROWS * ((D + 1) / 2);
    if (i < n) {
        key(i);
    } else if (i < 2 * n) {
        value(i - n);
    } else if (i < 2 * n + BATCH * Q_HEADS * ROWS * ((D + 1) / 2)) {
        query(i - 2 * n);
    }
}
