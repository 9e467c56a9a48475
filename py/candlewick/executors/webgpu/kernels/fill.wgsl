// N words of one number.

override N: u32; override Y: u32; override VALUE: f32;

@group(0) @binding(0) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + counts.x * (group.y + counts.y * group.z)) * 256 + lane;
    if (i < N) { y[Y + i] = VALUE; }
}
