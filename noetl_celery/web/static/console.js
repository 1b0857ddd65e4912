// What the pages do beyond links and forms: a key that goes to the field for an execution's id.
document.addEventListener("keydown", (event) => {
  const target = event.target;
  if (event.ctrlKey || event.metaKey || event.altKey || target.matches("input, textarea, select")) return;
  const field = document.querySelector(`[data-key="${CSS.escape(event.key)}"]`);
  if (field) {
    event.preventDefault();
    field.focus();
  }
});

// What a person has opened or is filling in stays as it is when the page around it is renewed.
document.addEventListener("DOMContentLoaded", () => {
  if (!window.Idiomorph) return;
  Idiomorph.defaults.ignoreActiveValue = true;
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.tagName === "DETAILS");
});
