// Calls a URL some times with Node's http module and prints heads of answers. It knows nothing of proxies, and so connects to
// the sidecar and names the service as the host.
const http = require("http");

const [url, calls, ...rest] = process.argv.slice(2);
const [to, proxy] = [new URL(url), new URL(process.env.http_proxy)];
const headers = Object.fromEntries(rest.map((header) => header.split(": ")));

function call(left) {
  if (left === 0) return;
  const options = { host: proxy.hostname, port: proxy.port, path: to.pathname, headers: { ...headers, host: to.host } };
  http
    .get(options, (answer) => {
      answer.resume();
      answer.on("end", () => {
        console.log(`HTTP/1.1 ${answer.statusCode}\nx-fairmesh-decision: ${answer.headers["x-fairmesh-decision"]}`);
        call(left - 1);
      });
    })
    .on("error", (error) => {
      console.error(error.message);
      process.exitCode = 1;
    });
}

call(Number(calls));
