#!/bin/sh
# Makes candle.wav, the clip that ships with the site. The words are ours; flite (Debian package "flite", a free licence
# without conditions on what is made with it) speaks them with the voice "slt" of Carnegie Mellon University.
# It says: "Once upon a time, there was a small candle. It gave enough light to read by, and it never told a secret."
# Run: sh web/samples/make.sh
set -eu
cd "$(dirname "$0")"
parts=$(mktemp -d)
trap 'rm -r "$parts"' EXIT
say() { flite -voice slt --setf duration_stretch=1.05 -t "$2" -o "$parts/$1.wav"; }
say 1 "Once upon a time, there was a small candle."
say 2 "It gave enough light to read by, and it never told a secret."
python3 - "$parts/1.wav" "$parts/2.wav" <<'PYTHON'
import sys, wave
with wave.open("candle.wav", "wb") as out:
    out.setparams((1, 2, 16000, 0, "NONE", ""))
    for i, path in enumerate(sys.argv[1:]):
        with wave.open(path) as part:
            out.writeframes(bytes(2 * int(16000 * 0.6)) * (i > 0) + part.readframes(part.getnframes()))
PYTHON
