// <rota-chat src="wss://…/v1/responses">: an answer from a rota server on any page. This is all that a page has to load; what
// the element takes and tells is in the README.

import { RotaChat } from "./chat/element.js";

RotaChat.home = new URL("v1/responses", import.meta.url);
if (!customElements.get("rota-chat")) customElements.define("rota-chat", RotaChat);

export { RotaChat };
