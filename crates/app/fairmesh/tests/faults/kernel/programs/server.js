// Responds to each request with its path, a colon, its body, and as many bytes as the path says.
const http = require("http");

http
  .createServer((request, response) => {
    let sent = "";
    request.on("data", (part) => (sent += part));
    request.on("end", () => {
      const path = request.url.slice(1);
      const text = path + ":" + sent + "x".repeat(Number(path.split("-")[1]));
      response.writeHead(200, { "content-length": text.length });
      response.end(text);
    });
  })
  .listen(Number(process.argv[2]));
