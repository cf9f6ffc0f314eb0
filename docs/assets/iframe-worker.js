// Browsers start no worker for a page that was opened from disk: there, the search runs in a hidden frame.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = Object.assign(document.createElement("iframe"), { hidden: true })
      const script = `<script>window.postMessage = message => parent.dispatchEvent(
        new MessageEvent("frame-search", { data: message }))</script><script src="${url}"></script>`
      frame.srcdoc = script
      this.ready = new Promise(done => (frame.onload = () => done(frame.contentWindow)))
      addEventListener("frame-search", event => {
        const answer = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(answer)
      })
      document.body.append(frame)
    }
    postMessage(data) {
      this.ready.then(inside => inside.dispatchEvent(new MessageEvent("message", { data })))
    }
    terminate() {}
  }
