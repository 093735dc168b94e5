// Sound from a microphone to a WAV file of 16 kHz, as models of speech hear it.

/** Samples a second of the file. */
export const RATE = 16_000;

/** Bytes in front of the samples. */
const HEAD = 44;

/** True where the browser lets a page hear: on this machine, or over TLS. */
export const canHear = () => Boolean(globalThis.navigator?.mediaDevices?.getUserMedia && globalThis.AudioWorkletNode);

/** A recording from `begin` to `end`. */
export class Microphone {
  #blocks = [];

  /** Asks for the microphone and listens. Throws what the browser throws if there is none, or none is allowed. */
  async begin() {
    this.stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
    try {
      this.context = new AudioContext();
      await this.context.audioWorklet.addModule(new URL("recorder.js", import.meta.url));
      this.recorder = new AudioWorkletNode(this.context, "recorder", { numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit" });
      this.recorder.port.onmessage = ({ data }) => this.#blocks.push(data);
      this.context.createMediaStreamSource(this.stream).connect(this.recorder);
      await this.context.resume();
    } catch (error) {
      this.#release();
      throw error;
    }
  }

  /** Stops listening; the recording as a WAV file, or null if nothing was heard. */
  async end() {
    const rate = this.context.sampleRate;
    this.#release();
    const length = this.#blocks.reduce((sum, block) => sum + block.length, 0);
    if (!length) return null;
    const whole = new OfflineAudioContext(1, Math.max(1, Math.round((length * RATE) / rate)), RATE);
    const buffer = whole.createBuffer(1, length, rate);
    let at = 0;
    for (const block of this.#blocks) {
      buffer.copyToChannel(block, 0, at);
      at += block.length;
    }
    const source = whole.createBufferSource();
    source.buffer = buffer;
    source.connect(whole.destination);
    source.start();
    return wav((await whole.startRendering()).getChannelData(0));
  }

  /** Stops listening and forgets what was heard. */
  cancel() {
    this.#release();
    this.#blocks = [];
  }

  #release() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.context?.close().catch(() => {});
  }
}

/** A WAV file of one channel and 16 bits: samples of ±1 at `RATE`. */
export function wav(samples) {
  const view = new DataView(new ArrayBuffer(HEAD + 2 * samples.length));
  const words = (at, text) => [...text].forEach((letter, index) => view.setUint8(at + index, letter.charCodeAt(0)));
  words(0, "RIFF");
  view.setUint32(4, HEAD - 8 + 2 * samples.length, true);
  words(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, RATE, true);
  view.setUint32(28, 2 * RATE, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  words(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, index) => view.setInt16(HEAD + 2 * index, Math.round(Math.max(-1, Math.min(1, sample)) * 32767), true));
  return new Blob([view.buffer], { type: "audio/wav" });
}
