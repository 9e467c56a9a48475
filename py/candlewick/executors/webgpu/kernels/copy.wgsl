// Up to four axes of 4-byte words from one place to another: transpose, concat, pad, update of a cache, rows of a table.
// A runtime scalar (SLOT, or -1 and FIXED) times a step is added to where it reads or writes.

override N: u32;
override D0: u32; override D1: u32; override D2: u32; override D3: u32;
override S0: u32; override S1: u32; override S2: u32; override S3: u32;
override T0: u32; override T1: u32; override T2: u32; override T3: u32;
override SRC: u32; override DST: u32;
override SRC_STEP: u32; override DST_STEP: u32;
override SLOT: i32 = -1; override FIXED: u32 = 0;

@group(0) @binding(0) var<storage, read> src: array<u32>;
@group(0) @binding(1) var<storage, read_write> dst: array<u32>;
@group(0) @binding(2) var<storage, read> scalars: array<u32>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let i = (group.x + counts.x * (group.y + counts.y * group.z)) * 256 + lane;
    if (i >= N) { return; }
    let a3 = i % D3;
    let a2 = i / D3 % D2;
    let a1 = i / (D3 * D2) % D1;
    let a0 = i / (D3 * D2 * D1);
    var at = FIXED;
    if (SLOT >= 0) { at = scalars[u32(max(SLOT, 0))]; }
    dst[DST + at * DST_STEP + a0 * T0 + a1 * T1 + a2 * T2 + a3 * T3] = src[SRC + at * SRC_STEP + a0 * S0 + a1 * S1 + a2 * S2 + a3 * S3];
}
