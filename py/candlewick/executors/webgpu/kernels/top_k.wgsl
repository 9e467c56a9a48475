// Indices of the COUNT largest of each row, largest first, of equals the lower index first. A workgroup a row: every round takes the
// largest of what comes after the one before, in the order (value down, index up).

override M: u32; override N: u32; override COUNT: u32;
override X: u32; override Y: u32;

@group(0) @binding(0) var<storage, read> x: array<u32>;
@group(0) @binding(1) var<storage, read_write> y: array<u32>;

// A whole number that is larger where the float is: shaders may treat NaN and infinities as they like. NaN comes last.
fn key(bits: u32) -> u32 {
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return 0u; }
    if (bits == 0x80000000u) { return 0x80000000u; } // -0 is 0
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

var<workgroup> values: array<u32, 256>;
var<workgroup> places: array<u32, 256>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) counts: vec3u, @builtin(local_invocation_index) lane: u32) {
    let row = group.x + group.y * counts.x;
    let here = min(row, M - 1);
    // this thread's best candidate; it looks again through its share only when that one was taken
    var value = 0u;
    var place = N;
    for (var i = lane; i < N; i += 256) {
        let v = key(x[X + here * N + i]);
        if (place == N || v > value) {
            value = v;
            place = i;
        }
    }
    for (var round = 0u; round < COUNT; round++) {
        values[lane] = value;
        places[lane] = place;
        workgroupBarrier();
        for (var half = 128u; half > 0; half /= 2) {
            if (lane < half) {
                let other = values[lane + half];
                let its = places[lane + half];
                let mine = places[lane];
                if (its < N && (mine == N || other > values[lane] || (other == values[lane] && its < mine))) {
                    values[lane] = other;
                    places[lane] = its;
                }
            }
            workgroupBarrier();
        }
        let best = values[0];
        let taken = places[0];
        if (lane == 0 && row < M) { y[Y + row * COUNT + round] = taken; }
        workgroupBarrier();
        if (taken == place && place < N) {
            var next = 0u;
            place = N;
            for (var i = lane; i < N; i += 256) {
                let v = key(x[X + here * N + i]);
                if ((v < best || (v == best && i > taken)) && (place == N || v > next)) {
                    next = v;
                    place = i;
                }
            }
            value = next;
        }
    }
}
