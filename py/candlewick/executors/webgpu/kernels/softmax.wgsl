// softmax or log_softmax (LOG) of rows; a workgroup a row.

override M: u32; override N: u32;
override X: u32; override Y: u32;
override LOG: bool = false;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

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

fn largest_of_all(lane: u32, mine: f32) -> f32 {
    parts[lane] = mine;
    workgroupBarrier();
    for (var half = THREADS / 2; half > 0; half /= 2) {
        if (lane < half) { parts[lane] = max(parts[lane], parts[lane + half]); }
        workgroupBarrier();
    }
    let top = parts[0];
    workgroupBarrier();
    return top;
}

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + counts.x * (group.y + counts.y * group.z);
    if (row >= M) { return; }
    var mine = -3.4e38;
    for (var i = lane; i < N; i += THREADS) { mine = max(mine, x[X + row * N + i]); }
    let largest = largest_of_all(lane, mine);
    mine = 0.0;
    for (var i = lane; i < N; i += THREADS) { mine += exp(x[X + row * N + i] - largest); }
    let sum = total(lane, mine);
    for (var i = lane; i < N; i += THREADS) {
        let d = x[X + row * N + i] - largest;
        if (LOG) { y[Y + row * N + i] = d - log(sum); } else { y[Y + row * N + i] = exp(d) / sum; }
    }
}
