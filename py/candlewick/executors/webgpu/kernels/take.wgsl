// y[i, j] = x[i, ids[i, j]]

override M: u32; override N: u32; override COUNT: u32;
override X: u32; override IDS: u32; override Y: u32;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> ids: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + counts.x * (group.y + counts.y * group.z)) * 64 + lane;
    if (i < M * COUNT) { y[Y + i] = x[X + i / COUNT * N + u32(clamp(ids[IDS + i], 0, i32(N - 1)))]; }
}
