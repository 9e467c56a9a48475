// y = (x - mean) / sqrt(var + eps) * w + b over the last axis; a workgroup a row, sums in float32 by a tree.

override M: u32; override N: u32;
override X: u32; override LDX: u32; override W: u32; override B: u32; override Y: u32;
override EPS: f32;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> w: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

const THREADS = 128u;
var<workgroup> parts: array<f32, THREADS>;

fn total(lane: u32, mine: f32) -> f32 {
    parts[lane] = mine;
    workgroupBarrier();
    for (var half = THREADS / 2; half > 0; half /= 2) {
        if (lane < half) { parts[lane] += parts[lane + half]; }
        workgroupBarrier();
    }
    let sum = parts[0];
    workgroupBarrier();
    return sum;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + counts.x * (group.y + counts.y * group.z);
    if (row >= M) { return; }
    let from_ = X + row * LDX;
    var sum = 0.0;
    for (var i = lane; i < N; i += THREADS) { sum += x[from_ + i]; }
    let mean = total(lane, sum) / f32(N);
    var squares = 0.0;
    for (var i = lane; i < N; i += THREADS) {
        let d = x[from_ + i] - mean;
        squares += d * d;
    }
    let scale = inverseSqrt(total(lane, squares) / f32(N) + EPS);
    for (var i = lane; i < N; i += THREADS) { y[Y + row * N + i] = (x[from_ + i] - mean) * scale * w[W + i] + b[B + i]; }
}
