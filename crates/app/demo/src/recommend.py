"""What others bought: a plain HTTP server that knows nothing of Fairmesh."""

import json
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Recommend(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120
    # One segment an answer: without it each is written in two, and Nagle's algorithm waits between them.
    wbufsize = -1

    def do_GET(self):
        item = self.path.rsplit("/", 1)[-1]
        body = json.dumps({"because_of": item, "try": [f"{item}-{n}" for n in range(3)]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Recommend)
server.daemon_threads = True
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
server.serve_forever()
