// A small virtual DOM: h() describes a tree, and patch() changes only the nodes that differ.
// Properties become attributes; `style` is an object set through the CSSOM, since the CSP forbids the attribute;
// `on` holds listeners, which are replaced without removing and adding them.

const SVG = new Set(["svg", "path", "rect", "line", "g", "polyline", "title"]);

export function h(tag, props, ...children) {
  const given = props || {};
  return { tag, props: given, key: given.key, children: flat(children, []) };
}

function flat(children, into) {
  for (const one of children) {
    if (one === null || one === undefined || one === false || one === true) continue;
    if (Array.isArray(one)) flat(one, into);
    else into.push(typeof one === "object" ? one : String(one));
  }
  return into;
}

function make(node, inSvg) {
  if (typeof node === "string") return document.createTextNode(node);
  const svg = node.tag === "svg" || (inSvg && SVG.has(node.tag));
  const el = svg
    ? document.createElementNS("http://www.w3.org/2000/svg", node.tag)
    : document.createElement(node.tag);
  el.__props = {};
  el.__on = {};
  return el;
}

function dispatch(event) {
  const call = event.currentTarget.__on[event.type];
  if (call) call(event);
}

function setProps(el, props) {
  const before = el.__props;
  for (const name in before) {
    if (!(name in props) && name !== "key" && name !== "on" && name !== "style") unset(el, name);
  }
  for (const name in props) {
    const value = props[name];
    if (name === "key" || before[name] === value) {
      if (name !== "value") continue;
    }
    if (name === "on") listen(el, value);
    else if (name === "style") restyle(el, before.style || {}, value);
    else if (name === "value") {
      if (el.value !== value && document.activeElement !== el) el.value = value;
    } else if (value === false || value === null || value === undefined) unset(el, name);
    else if (name === "checked" || name === "disabled" || name === "open") el[name] = true;
    else el.setAttribute(name, value === true ? "" : value);
  }
  el.__props = props;
}

function unset(el, name) {
  if (name === "checked" || name === "disabled" || name === "open") el[name] = false;
  el.removeAttribute(name);
}

function listen(el, wanted) {
  for (const type in wanted) {
    if (!(type in el.__on)) el.addEventListener(type, dispatch, { passive: type === "scroll" });
    el.__on[type] = wanted[type];
  }
}

function restyle(el, before, wanted) {
  for (const name in before) if (!(name in wanted)) el.style.removeProperty(name);
  for (const name in wanted) if (before[name] !== wanted[name]) el.style.setProperty(name, wanted[name]);
}

function same(el, node) {
  if (typeof node === "string") return el.nodeType === 3;
  return el.nodeType === 1 && el.localName === node.tag.toLowerCase() && el.__props && el.__props.key === node.key;
}

export function patch(parent, nodes) {
  const list = Array.isArray(nodes) ? flat(nodes, []) : flat([nodes], []);
  const inSvg = parent.namespaceURI === "http://www.w3.org/2000/svg";
  let keyed = null;
  let at = parent.firstChild;
  for (const node of list) {
    if (at && same(at, node)) {
      update(at, node);
      at = at.nextSibling;
      continue;
    }
    let found = null;
    if (typeof node !== "string" && node.key !== undefined) {
      if (!keyed) {
        keyed = new Map();
        for (let one = at; one; one = one.nextSibling) {
          if (one.__props && one.__props.key !== undefined) keyed.set(one.__props.key, one);
        }
      }
      found = keyed.get(node.key) || null;
      if (found && (found.parentNode !== parent || !same(found, node))) found = null;
      if (found) keyed.delete(node.key);
    }
    if (!found) {
      found = make(node, inSvg);
      parent.insertBefore(found, at);
      update(found, node);
      if (at && node.key === undefined && typeof node !== "string" && !(at.__props && at.__props.key !== undefined)) {
        const next = at.nextSibling;
        at.remove();
        at = next;
      }
      continue;
    }
    if (found === at) at = at.nextSibling;
    else parent.insertBefore(found, at);
    update(found, node);
  }
  while (at) {
    const next = at.nextSibling;
    at.remove();
    at = next;
  }
}

function update(el, node) {
  if (typeof node === "string") {
    if (el.data !== node) el.data = node;
    return;
  }
  patch(el, node.children);
  setProps(el, node.props); // Set after the children, since a select's value needs its options.
}
