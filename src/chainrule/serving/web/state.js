// The state of the page is in the part of its address after #: a view can be bookmarked and shared.

/** The view and its settings: #read?model=gpt&text=… */
export function readHash() {
  const [view, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { view, values: Object.fromEntries(new URLSearchParams(query)) };
}

export function hashOf(view, values) {
  const kept = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const query = new URLSearchParams(kept).toString();
  return query ? `#${view}?${query}` : `#${view}`;
}

/** Remember settings without adding to the history. */
export function writeHash(view, values) {
  history.replaceState(null, "", hashOf(view, values));
}
