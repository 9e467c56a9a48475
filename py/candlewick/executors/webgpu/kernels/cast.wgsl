// float32 <-> int32; towards int32 the fraction is cut off.

override N: u32; override X: u32; override Y: u32; override TO_FLOAT: bool;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + counts.x * (group.y + counts.y * group.z)) * 256 + lane;
    if (i >= N) { return; }
    if (TO_FLOAT) {
        y[Y + i] = bitcast<u32>(f32(bitcast<i32>(x[X + i])));
    } else {
        y[Y + i] = bitcast<u32>(i32(bitcast<f32>(x[X + i])));
    }
}
