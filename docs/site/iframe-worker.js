// The search of this site runs in a Worker. Browsers refuse one to a page that was opened from disk.
// There, run the worker's script in a hidden frame instead. The site's theme wants a file of this name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #loaded = new Promise((resolve) => this.#frame.addEventListener("load", resolve));

    constructor(url) {
      super();
      // The script's answers reach the frame's element, where the page listens.
      const answer = `window.postMessage = (data) =>
        frameElement.dispatchEvent(new MessageEvent("message", { data }));`;
      const address = new URL(url, location.href).href.replaceAll('"', "%22");
      this.#frame.hidden = true;
      this.#frame.srcdoc = `<script>${answer}</script><script src="${address}"></script>`;
      this.#frame.addEventListener("message", ({ data }) =>
        this.dispatchEvent(new MessageEvent("message", { data })));
      document.body.append(this.#frame);
    }

    async postMessage(data) {
      await this.#loaded;
      this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
