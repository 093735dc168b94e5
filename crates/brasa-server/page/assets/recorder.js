// Passes the samples of a microphone on, block by block. It runs beside the page, where sound is made.

registerProcessor(
  "recorder",
  class extends AudioWorkletProcessor {
    process([input]) {
      // A block's memory is used again for the next one.
      if (input?.[0]) this.port.postMessage(input[0].slice());
      return true;
    }
  },
);
