// The session, sent as a header of each request. A cookie would also reach the other ports of this host.

const NAME = "sluice-session";
const ANSWER_MS = 200;
const windows = new BroadcastChannel(NAME);
let session = sessionStorage.getItem(NAME) || "";

windows.addEventListener("message", (event) => {
  if (event.data.wanted && session) windows.postMessage({ session });
});

export function keep(made) {
  session = made;
  if (made) sessionStorage.setItem(NAME, made);
  else sessionStorage.removeItem(NAME);
}

// A new window continues the session of another window of the same origin, port included.
export function borrow() {
  if (session) return undefined;
  return new Promise((done) => {
    const take = (event) => {
      if (!event.data.session) return;
      keep(event.data.session);
      finish();
    };
    const finish = () => {
      windows.removeEventListener("message", take);
      done();
    };
    windows.addEventListener("message", take);
    windows.postMessage({ wanted: true });
    setTimeout(finish, ANSWER_MS);
  });
}

export function call(path, { headers = {}, ...options } = {}) {
  const known = session ? { "X-Sluice-Session": session } : {};
  return fetch(`api/${path}`, { ...options, headers: { ...headers, ...known } });
}
