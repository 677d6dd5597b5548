// Calls each path several times on kept connections, and says how many responses were the right ones. Arguments: an address and paths.
const http = require("http");

const [address, ...paths] = process.argv.slice(2);
const agent = new http.Agent({ keepAlive: true });

function call(path, sent) {
  return new Promise((resolve, reject) => {
    const headers = { host: "raw.shop", "content-length": sent.length };
    const method = sent ? "POST" : "GET";
    const request = http.request({ host: address, agent, path: "/" + path, method, headers }, (response) => {
      let body = "";
      response.on("data", (part) => (body += part));
      response.on("end", () => resolve([response.statusCode, body]));
    });
    request.on("error", reject);
    request.end(sent);
  });
}

async function main() {
  let right = 0;
  for (let round = 0; round < 10; round++) {
    for (const path of paths) {
      const sent = round % 2 ? "b".repeat(round * 20) : "";
      const [status, body] = await call(path, sent);
      if (status === 200 && body === path + ":" + sent + "x".repeat(Number(path.split("-")[1]))) right++;
    }
  }
  console.log("right " + right);
  agent.destroy();
}

main();
