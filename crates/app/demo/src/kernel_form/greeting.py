"""A plain HTTP server that says who it is, and knows nothing of Fairmesh."""

import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Greeting(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 120
    # One send an answer.
    wbufsize = -1

    def do_GET(self):
        body = sys.argv[2].encode()
        self.send_response(200)
        self.send_header("content-type", "text/plain")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Greeting)
server.daemon_threads = True
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
server.serve_forever()
