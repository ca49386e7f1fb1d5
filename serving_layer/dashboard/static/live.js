// Answers as they change, by WebSocket: a browser opens only six other connections to a server, over all its windows.

import { Offline, Problem, address, get, pathOf } from "./api.js";
import { connected, disconnected } from "./notices.js";

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 5_000;

/**
 * Follow a question until the returned function is called. `onAnswer` gets each answer, `onProblem` each Problem.
 * Comes back by itself when the server was away; says nothing while nobody looks at the page.
 */
export function follow(view, parameters, onAnswer, onProblem) {
  let socket = null, timer = 0, ended = false, wait = FIRST_WAIT_MS;

  function open() {
    clearTimeout(timer);
    if (ended || socket || document.hidden) return;
    const url = new URL(address(pathOf(view, "/live"), parameters), location.href);
    url.protocol = url.protocol.replace("http", "ws");
    let opened = false;
    const own = socket = new WebSocket(url);
    own.onopen = () => { opened = true; wait = FIRST_WAIT_MS; connected(); };
    own.onmessage = (message) => {
      if (ended || socket !== own) return;
      const reply = JSON.parse(message.data);
      if (reply.answer) onAnswer(reply.answer);
      else onProblem(new Problem(reply.problem.status, reply.problem));
    };
    own.onclose = () => {
      if (socket !== own) return;
      socket = null;
      if (ended || document.hidden) return;
      if (opened) disconnected();
      opened ? again() : findReason();
    };
  }

  // A handshake that is refused gives no reason; the same query by GET does.
  async function findReason() {
    try {
      const answer = await get(pathOf(view, "/query"), parameters.filter(([name]) => name !== "every"));
      if (!ended) onAnswer(answer);
    } catch (error) {
      if (ended) return;
      if (error instanceof Problem) onProblem(error);
      if (error instanceof Problem && error.status < 500 && error.status !== 429) return;
      if (!(error instanceof Problem || error instanceof Offline)) throw error;
    }
    again();
  }

  function again() {
    timer = setTimeout(open, wait);
    wait = Math.min(wait * 2, LONGEST_WAIT_MS);
  }

  function onVisibility() {
    if (document.hidden) { const old = socket; socket = null; old?.close(); } else open();
  }

  document.addEventListener("visibilitychange", onVisibility);
  open();
  return () => {
    ended = true;
    clearTimeout(timer);
    document.removeEventListener("visibilitychange", onVisibility);
    socket?.close();
  };
}
