// Light, dark, or as the system has it. The choice is kept in this browser.

const CHOICES = ["auto", "light", "dark"];
const dark = matchMedia("(prefers-color-scheme: dark)");

export function setUpTheme(button, changed) {
  let choice = read();
  const apply = () => {
    document.documentElement.dataset.theme = choice === "auto" ? (dark.matches ? "dark" : "light") : choice;
    button.textContent = `Theme: ${choice}`;
    changed();
  };
  button.addEventListener("click", () => {
    choice = CHOICES[(CHOICES.indexOf(choice) + 1) % CHOICES.length];
    try {
      localStorage.setItem("theme", choice);
    } catch {
      // a browser that keeps nothing still shows it
    }
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}

function read() {
  try {
    const kept = localStorage.getItem("theme");
    return CHOICES.includes(kept) ? kept : "auto";
  } catch {
    return "auto";
  }
}
