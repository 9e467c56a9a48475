"""Other forms of kernels: sums across a subgroup, weights as float16 in workgroup memory, tiles of block-quantised weights. A
kernel's file is its plain form and valid as it stands; a form has other texts in the place of some of its functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

KERNELS = Path(__file__).with_name("kernels")
VARIANTS = {
    "layer_norm": [("subgroups",)], "rms_norm": [("subgroups",)], "softmax": [("subgroups",)], "reduce": [("subgroups",)],
    "linear": [("subgroups",)], "tiles": [("blocks",), ("shader-f16",)],
}
"""The forms that lowering may choose."""
ANYWHERE = {"blocks"}
"""What asks for no feature of the device."""

# How lanes are spread over subgroups is left to the driver, so nothing here supposes it.
TOTAL = """fn total(lane: u32, mine: f32) -> f32 {
    let sum = subgroupAdd(mine);
    let member = subgroupExclusiveAdd(1u);
    let size = subgroupAdd(1u);
    parts[lane] = select(0.0, sum, member == 0u);
    workgroupBarrier();
    var all = 0.0;
    for (var j = member; j < THREADS; j += size) { all += parts[j]; }
    all = subgroupAdd(all);
    workgroupBarrier();
    return all;
}
"""
WHEREABOUTS = """var<workgroup> teams: atomic<u32>;
var<workgroup> n_teams: u32;

fn whereabouts(lane: u32) -> vec3u {
    if (lane == 0) { atomicStore(&teams, 0u); }
    workgroupBarrier();
    let member = subgroupExclusiveAdd(1u);
    var team = 0u;
    if (member == 0u) { team = atomicAdd(&teams, 1u); }
    team = subgroupBroadcastFirst(team);
    workgroupBarrier();
    if (lane == 0) { n_teams = atomicLoad(&teams); }
    return vec3u(team, member, subgroupAdd(1u));
}
"""
THERE = """fn there() -> u32 { return workgroupUniformLoad(&n_teams); }
"""
SHARE = """fn share(lane: u32, mine: ptr<function, array<f32, 16>>) {
    for (var i = 0u; i < 16; i++) { (*mine)[i] = subgroupAdd((*mine)[i]); }
}
"""
FOUR_OF_BLOCKS = """fn four_weights(row: u32, k: u32) -> vec4f {
    let i = row * K + k;
    return quad(i / 32, i % 16 / 4, i % 32 / 16);
}
"""
TEAM_SUM = """fn team_sum(first: u32, i: u32, mine: ptr<function, array<f32, 16>>) -> f32 { return (*mine)[i]; }
"""


def variant(kernel: str, features: Sequence[str]) -> str:
    """The text of a kernel in the form that uses these features."""
    text = (KERNELS / f"{kernel}.wgsl").read_text()
    head = ""
    if "shader-f16" in features:
        head += "enable f16;\n"
        text = _once(text, r"alias Stored = vec4f;", "alias Stored = vec4h;")
    if "blocks" in features:
        opened = re.findall(r"^// ---- blocks.*?(?=^// ----)", (KERNELS / "linear.wgsl").read_text(), re.MULTILINE | re.DOTALL)
        text = _replaced(text, "four_weights", opened[0] + FOUR_OF_BLOCKS)
    if "subgroups" in features:
        head += "enable subgroups;\n"
        if kernel == "linear":
            for name, other in (("whereabouts", WHEREABOUTS), ("there", THERE), ("share", SHARE), ("team_sum", TEAM_SUM)):
                text = _replaced(text, name, other)
        else:
            text = _replaced(text, "total", TOTAL)
    return head + text


def _replaced(text: str, name: str, other: str) -> str:
    """The function `name` becomes another text."""
    return _once(text, rf"^fn {name}\(.*?\}}\n(?=\n|$)", other)


def _once(text: str, pattern: str, other: str) -> str:
    text, n = re.subn(pattern, lambda _: other, text, flags=re.MULTILINE | re.DOTALL)
    if n != 1:
        raise ValueError(f"{pattern!r} is in the kernel {n} times")
    return text
