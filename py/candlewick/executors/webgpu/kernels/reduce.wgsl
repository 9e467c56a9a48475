// One number of each row: OP 0 sum, 1 mean, 2 max, 3 argmax (an int32, the first of equals), 4 log_sum_exp. A workgroup a row.

override M: u32; override N: u32;
override X: u32; override Y: u32;
override OP: u32;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

var<workgroup> parts: array<f32, 256>;
var<workgroup> places: array<u32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * counts.x;
    let here = min(row, M - 1);
    var value = 0.0;
    var place = N;
    if (OP >= 2) { value = -3.4e38; }
    for (var i = lane; i < N; i += 256) {
        let v = x[X + here * N + i];
        if (OP < 2) {
            value += v;
        } else if (v > value || place == N) {
            value = v;
            place = i;
        }
    }
    parts[lane] = value;
    places[lane] = place;
    workgroupBarrier();
    for (var half = 128u; half > 0; half /= 2) {
        if (lane < half) {
            let other = parts[lane + half];
            let its = places[lane + half];
            if (OP < 2) {
                parts[lane] += other;
            } else if (its < N && (other > parts[lane] || (other == parts[lane] && its < places[lane]) || places[lane] == N)) {
                parts[lane] = other;
                places[lane] = its;
            }
        }
        workgroupBarrier();
    }
    let best = parts[0];
    let first = places[0];
    workgroupBarrier();
    if (OP == 4) {
        var sum = 0.0;
        for (var i = lane; i < N; i += 256) { sum += exp(x[X + here * N + i] - best); }
        parts[lane] = sum;
        workgroupBarrier();
        for (var half = 128u; half > 0; half /= 2) {
            if (lane < half) { parts[lane] += parts[lane + half]; }
            workgroupBarrier();
        }
    }
    if (lane == 0 && row < M) {
        switch (OP) {
            case 1u: { y[Y + row] = bitcast<u32>(best / f32(N)); }
            case 3u: { y[Y + row] = first; }
            case 4u: { y[Y + row] = bitcast<u32>(log(parts[0]) + best); }
            default: { y[Y + row] = bitcast<u32>(best); }
        }
    }
}
