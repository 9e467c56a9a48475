// Rotary embedding of x (b, h, n, d) by rows start + i of cos and sin (capacity, d / 2); PAIRS: neighbours, else halves.

override BATCH: u32; override HEADS: u32; override ROWS: u32; override HALF: u32;
override X: u32; override X_BATCH: u32; override X_HEAD: u32; override X_ROW: u32;
override Y: u32; override Y_BATCH: u32; override Y_HEAD: u32; override Y_ROW: u32;
override COS: u32; override SIN: u32; override CAPACITY: u32;
override PAIRS: bool = false;
override SLOT: i32 = -1; override FIXED: u32 = 0;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> cosines: array<f32>;
@group(0) @binding(2) var<storage, read> sines: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<storage, read> scalars: array<u32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + group.y * counts.x) * 64 + lane;
    if (i >= BATCH * HEADS * ROWS * HALF) { return; }
    let j = i % HALF;
    let row = i / HALF % ROWS;
    let head = i / (HALF * ROWS) % HEADS;
    let batch = i / (HALF * ROWS * HEADS);
    var start = FIXED;
    if (SLOT >= 0) { start = scalars[u32(max(SLOT, 0))]; }
    let table = min(start + row, CAPACITY - 1) * HALF + j;
    let c = cosines[COS + table];
    let s = sines[SIN + table];
    let source = X + batch * X_BATCH + head * X_HEAD + row * X_ROW;
    let to = Y + batch * Y_BATCH + head * Y_HEAD + row * Y_ROW;
    var first = j;
    var second = j + HALF;
    if (PAIRS) {
        first = 2 * j;
        second = 2 * j + 1;
    }
    let a = x[source + first];
    let b = x[source + second];
    y[to + first] = a * c - b * s;
    y[to + second] = b * c + a * s;
}
