// Speed of an answer: the server's own timings where it sends them, else the page's clock.

/** Counts the tokens of one answer. */
export class Meter {
  /** @param {() => number} now  milliseconds */
  constructor(now = () => performance.now()) {
    this.now = now;
    this.begin = now();
    this.first = null;
    this.last = null;
    this.chunks = 0;
    this.timings = null;
    this.usage = null;
  }

  /** Takes a chunk of the stream in. */
  take(chunk) {
    if (chunk.timings) this.timings = chunk.timings;
    if (chunk.usage) this.usage = chunk.usage;
    const delta = chunk.choices?.[0]?.delta;
    if (!delta || !(delta.content || delta.reasoning_content || delta.tool_calls)) return;
    this.last = this.now();
    this.first ??= this.last;
    this.chunks += 1;
  }

  /** Milliseconds since the request began. */
  get waited() {
    return this.now() - this.begin;
  }

  /** Numbers to show beside the answer and to keep with it; times in milliseconds, speeds in tokens a second. */
  get stats() {
    const { timings, usage } = this;
    const tokens = usage?.completion_tokens ?? timings?.predicted_n ?? this.chunks;
    const span = this.last - this.first;
    const own = this.chunks > 1 && span > 0 ? ((this.chunks - 1) / span) * 1000 : null;
    return {
      tokens,
      speed: timings?.predicted_n > 1 ? timings.predicted_per_second : own,
      firstMs: this.first === null ? null : this.first - this.begin,
      promptTokens: usage?.prompt_tokens ?? (timings ? (timings.prompt_n ?? 0) + (timings.cache_n ?? 0) : null),
      cachedTokens: usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n ?? null,
      promptSpeed: timings?.prompt_per_second ?? null,
      draftTokens: timings?.draft_n ?? null,
      acceptedTokens: timings?.draft_n_accepted ?? null,
    };
  }
}

/** The short line below an answer: "41.3 tokens/s · 128 tokens · first after 0.21 s". */
export function shortStats(stats) {
  if (!stats) return "";
  const parts = [];
  if (Number.isFinite(stats.speed)) parts.push(`${rounded(stats.speed)} tokens/s`);
  if (stats.tokens) parts.push(`${stats.tokens.toLocaleString("en")} ${stats.tokens === 1 ? "token" : "tokens"}`);
  if (Number.isFinite(stats.firstMs)) parts.push(`first after ${seconds(stats.firstMs)}`);
  return parts.join(" · ");
}

/** The rest, for the tooltip: what is known of the prompt and of drafts. */
export function longStats(stats) {
  if (!stats) return "";
  const parts = [];
  if (stats.promptTokens) {
    const cached = stats.cachedTokens ? `, ${stats.cachedTokens.toLocaleString("en")} of them cached` : "";
    parts.push(`prompt of ${stats.promptTokens.toLocaleString("en")} tokens${cached}`);
  }
  if (Number.isFinite(stats.promptSpeed) && stats.promptSpeed > 0) parts.push(`read at ${rounded(stats.promptSpeed)} tokens/s`);
  if (stats.draftTokens) parts.push(`${stats.acceptedTokens ?? 0} of ${stats.draftTokens} drafted tokens accepted`);
  return parts.join(", ");
}

/** "0.21 s", "12 s", "2 min 5 s". */
export function seconds(milliseconds) {
  const value = milliseconds / 1000;
  if (value < 10) return `${value.toFixed(value < 1 ? 2 : 1)} s`;
  if (value < 60) return `${Math.round(value)} s`;
  const whole = Math.round(value);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

function rounded(value) {
  return value < 100 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}
