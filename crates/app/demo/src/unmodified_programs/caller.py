"""Calls a URL some times with Python's standard library, which knows of proxies, and prints heads of answers."""

import sys
import urllib.request

url, calls, headers = sys.argv[1], int(sys.argv[2]), dict(header.split(": ", 1) for header in sys.argv[3:])
for _ in range(calls):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=5) as answer:
        answer.read()
        print(f"HTTP/1.1 {answer.status}")
        print(f"x-fairmesh-decision: {answer.headers['x-fairmesh-decision']}")
