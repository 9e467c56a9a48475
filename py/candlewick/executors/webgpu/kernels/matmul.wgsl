// y[m, n] = a[m, k] . b[k, n], COUNT times, all activations at any strides. A workgroup makes a tile of 32 x 32, a thread 2 x 2.

override COUNT: u32; override M: u32; override N: u32; override K: u32;
override A: u32; override A_BATCH: u32; override A_M: u32; override A_K: u32;
override B: u32; override B_BATCH: u32; override B_N: u32; override B_K: u32;
override Y: u32; override Y_BATCH: u32; override Y_M: u32; override Y_N: u32;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

var<workgroup> left: array<f32, 528>; // 16 rows of 32 + 1
var<workgroup> right: array<f32, 528>;

@compute @workgroup_size(16, 16)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_id) at: vec3u,
        @builtin(local_invocation_index) lane: u32) {
    let id = group.x + counts.x * (group.y + counts.y * group.z);
    let across = (N + 31) / 32;
    let down = (M + 31) / 32;
    let batch = id / (across * down);
    if (batch >= COUNT) { return; }
    let row0 = id / across % down * 32;
    let column0 = id % across * 32;
    let a_at = A + batch * A_BATCH;
    let b_at = B + batch * B_BATCH;
    var s00 = 0.0;
    var s01 = 0.0;
    var s10 = 0.0;
    var s11 = 0.0;
    for (var k0 = 0u; k0 < K; k0 += 16) {
        for (var j = lane; j < 512; j += 256) {
            let k = k0 + j % 16;
            let line = j / 16;
            var u = 0.0;
            var v = 0.0;
            if (k < K && row0 + line < M) { u = a[a_at + (row0 + line) * A_M + k * A_K]; }
            if (k < K && column0 + line < N) { v = b[b_at + (column0 + line) * B_N + k * B_K]; }
            left[j % 16 * 33 + line] = u;
            right[j % 16 * 33 + line] = v;
        }
        workgroupBarrier();
        for (var k = 0u; k < 16; k++) {
            let u0 = left[k * 33 + at.y];
            let u1 = left[k * 33 + at.y + 16];
            let v0 = right[k * 33 + at.x];
            let v1 = right[k * 33 + at.x + 16];
            s00 += u0 * v0;
            s01 += u0 * v1;
            s10 += u1 * v0;
            s11 += u1 * v1;
        }
        workgroupBarrier();
    }
    let row = row0 + at.y;
    let column = column0 + at.x;
    let to = Y + batch * Y_BATCH;
    if (row < M && column < N) { y[to + row * Y_M + column * Y_N] = s00; }
    if (row < M && column + 16 < N) { y[to + row * Y_M + (column + 16) * Y_N] = s01; }
    if (row + 16 < M && column < N) { y[to + (row + 16) * Y_M + column * Y_N] = s10; }
    if (row + 16 < M && column + 16 < N) { y[to + (row + 16) * Y_M + (column + 16) * Y_N] = s11; }
}
