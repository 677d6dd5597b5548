"""A server that knows nothing of Fairmesh: outside.py [PORT].

`fairmesh register` starts it and keeps it in the registry; see README.md.
"""

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hello(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # Keeps connections.
    disable_nagle_algorithm = True  # Head and body are two writes; the second would wait 40 ms for an acknowledgement.

    def do_GET(self):
        body = b"hello from Python\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8003
    ThreadingHTTPServer(("127.0.0.1", port), Hello).serve_forever()
