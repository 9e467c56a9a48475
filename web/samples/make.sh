#!/bin/sh
# Makes candle.wav, the clip that ships with the site: flite (Debian package "flite", free licence) speaks a text of ours
# with the voice "slt" (Carnegie Mellon University; free for any use, with thanks to them). Run: sh web/samples/make.sh
set -eu
cd "$(dirname "$0")"
flite -voice slt --setf duration_stretch=1.06 -o candle.wav \
  -t "A small light is enough to read by. Your voice stays on this device, and the words appear while you speak."
