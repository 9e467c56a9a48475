/**
 * Runs on the audio thread: averages the channels of the microphone and posts blocks of about 40 ms with their level.
 * {samples: Float32Array, peak, rms}; the answer to "stop" is the last, shorter block with {last: true}.
 */
class Tape extends AudioWorkletProcessor {
  constructor() {
    super();
    this.block = new Float32Array(Math.ceil(sampleRate * 0.04 / 128) * 128);
    this.filled = 0;
    this.open = true;
    this.port.onmessage = () => {
      this.send(true);
      this.open = false;
    };
  }

  /** @param {boolean} last */
  send(last) {
    const samples = this.block.slice(0, this.filled);
    let peak = 0, power = 0;
    for (const x of samples) {
      peak = Math.max(peak, Math.abs(x));
      power += x * x;
    }
    this.port.postMessage({ samples, peak, rms: Math.sqrt(power / Math.max(1, samples.length)), last }, [samples.buffer]);
    this.filled = 0;
  }

  /** @param {Float32Array[][]} inputs */
  process(inputs) {
    const channels = inputs[0];
    if (this.open && channels.length > 0) {
      const n = channels[0].length, scale = 1 / channels.length;
      for (let i = 0; i < n; i++) {
        let sum = 0;
        for (const channel of channels) sum += channel[i];
        this.block[this.filled + i] = sum * scale;
      }
      this.filled += n;
      if (this.filled >= this.block.length) this.send(false);
    }
    return this.open;
  }
}

registerProcessor("tape", Tape);
