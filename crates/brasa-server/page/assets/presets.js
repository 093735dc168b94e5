// Presets: a system prompt with the sampling that suits it, under a name. They are kept with the settings in this browser.

/** The settings that a preset holds, besides the system prompt. */
const HELD = ["numbers", "stop", "thinking"];

/** Longest name of a preset, in characters. */
export const LONGEST_NAME = 60;

/** Names of all presets, in the order of the alphabet. */
export function presetNames(settings) {
  return Object.keys(settings.get("presets")).sort((a, b) => a.localeCompare(b));
}

/** Keeps the present choices under a name, over what stood there. */
export function savePreset(settings, name, system) {
  const preset = Object.fromEntries(HELD.map((held) => [held, structuredClone(settings.get(held))]));
  settings.set("presets", { ...settings.get("presets"), [name]: { ...preset, system } });
}

/** Takes a preset's sampling over into the settings; returns its system prompt, or null if there is no such preset. */
export function usePreset(settings, name) {
  const preset = Object.hasOwn(settings.get("presets"), name) ? settings.get("presets")[name] : null;
  if (!preset) return null;
  for (const held of HELD) if (typeof preset[held] === typeof settings.get(held)) settings.set(held, structuredClone(preset[held]));
  return String(preset.system ?? "");
}

/** Forgets a preset. */
export function removePreset(settings, name) {
  const { [name]: _removed, ...rest } = settings.get("presets");
  settings.set("presets", rest);
}
