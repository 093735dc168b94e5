// Applies the kept choice of light or dark before the first paint.
// A classic script in the head: a module would run after it, and the page would flash.
(() => {
  try {
    const theme = localStorage.getItem("brasa.theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // Storage is switched off in this browser: the system's choice stays.
  }
})();
