// Search in pages that are opened as files. Browsers refuse them workers; a hidden frame runs the worker's script instead.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      window.addEventListener("message", (event) => {
        if (event.source !== inside) return;
        this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      const prelude = () => {
        window.postMessage = (data) => parent.postMessage(data, "*");
        window.importScripts = (...scripts) =>
          scripts.reduce(
            (before, source) =>
              before.then(
                () =>
                  new Promise((resolve) => {
                    const script = document.createElement("script");
                    script.src = source;
                    script.onload = resolve;
                    document.body.append(script);
                  }),
              ),
            Promise.resolve(),
          );
      };
      inside.document.open();
      inside.document.write(`<body><script>(${prelude})()</` + `script><script src="${url}"></` + "script>");
      inside.document.close();
      // Not before open(), which takes a window its listeners.
      this.ready = new Promise((resolve) => inside.addEventListener("load", resolve));
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
